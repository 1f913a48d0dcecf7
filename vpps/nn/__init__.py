"""Ready-made layers: each declares its parameters in a scope of the model and provides cells to call per vertex."""

from typing import TYPE_CHECKING, Any

from vpps.hints import missing_from as _missing_from
from vpps.nn.attention import attend
from vpps.nn.crf import CRF
from vpps.nn.embedding import Embedding
from vpps.nn.linear import MLP, LayerNorm, Linear
from vpps.nn.recurrent import GRU, LSTM, BiLSTM, State
from vpps.nn.trees import ChildSumTreeLSTM, NaryTreeGRU, NaryTreeLSTM

__all__ = [
    "CRF",
    "GRU",
    "LSTM",
    "MLP",
    "BiLSTM",
    "ChildSumTreeLSTM",
    "Embedding",
    "LayerNorm",
    "Linear",
    "NaryTreeGRU",
    "NaryTreeLSTM",
    "State",
    "attend",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise _missing_from(__name__, name)


__dir__ = __all__.copy  # completion shows nothing else
