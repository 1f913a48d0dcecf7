"""Ready-made cells: each declares its parameters in a scope of the model and has functions to call per vertex."""

from vpps.nn.attention import attend
from vpps.nn.bilstm import BiLSTM
from vpps.nn.embedding import Embedding
from vpps.nn.gru import GRU
from vpps.nn.linear import MLP, Linear
from vpps.nn.lstm import LSTM, State
from vpps.nn.tree_gru import NaryTreeGRU
from vpps.nn.tree_lstm import ChildSumTreeLSTM, NaryTreeLSTM

__all__ = [
    "GRU",
    "LSTM",
    "MLP",
    "BiLSTM",
    "ChildSumTreeLSTM",
    "Embedding",
    "Linear",
    "NaryTreeGRU",
    "NaryTreeLSTM",
    "State",
    "attend",
]
__dir__ = __all__.copy  # completion shows nothing else
