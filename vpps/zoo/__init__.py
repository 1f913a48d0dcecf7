"""Whole models, written as a user would write them: a file per family, `classifier.py` that they share, `task.py`, and
`tasks/` of `vpps-train`.

A `Task` is all that the command line, the tests and the benches know of a network: settings (which become options),
data, `loss`, `outputs`, `scores`. `bench/peers/torch_zoo/` and `dynet_zoo/` have the same networks in PyTorch and DyNet
under the same names of parameters; `tests/zoo/` compares losses and gradients with PyTorch's, `bench/learning.py` what
is learned, `bench/workloads.py` speed and memory.
"""

from vpps.zoo.encoder_decoder import EncoderDecoder
from vpps.zoo.language_model import LSTMLanguageModel
from vpps.zoo.lattices import LatticeGRU, LatticeLSTM
from vpps.zoo.roots import TDLSTMSentiment, TDRNNSentiment, TreeFC
from vpps.zoo.taggers import BiLSTMCharTagger, BiLSTMTagger
from vpps.zoo.task import Settings, Task, setting
from vpps.zoo.trees import (
    ChildSumTreeLSTMSentiment,
    MVRNNSentiment,
    RvNNSentiment,
    TreeGRUSentiment,
    TreeLSTMSentiment,
    TwoTypeTreeLSTMSentiment,
)

__all__ = [
    "BiLSTMCharTagger",
    "BiLSTMTagger",
    "ChildSumTreeLSTMSentiment",
    "EncoderDecoder",
    "LSTMLanguageModel",
    "LatticeGRU",
    "LatticeLSTM",
    "MVRNNSentiment",
    "RvNNSentiment",
    "Settings",
    "TDLSTMSentiment",
    "TDRNNSentiment",
    "Task",
    "TreeFC",
    "TreeGRUSentiment",
    "TreeLSTMSentiment",
    "TwoTypeTreeLSTMSentiment",
    "setting",
]
__dir__ = __all__.copy  # completion shows nothing else
