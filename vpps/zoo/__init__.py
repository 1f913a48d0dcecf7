"""Whole models, written as a user would write them: a file per network, `classifier.py` that they share, `task.py`, and
`tasks/` of `vpps-train`.

A `Task` is all that the command line, the tests and the benches know of a network: settings (which become options),
data, `loss`, `outputs`, `scores`. `bench/peers/torch_zoo/` and `dynet_zoo/` have the same networks in PyTorch and DyNet
under the same names of parameters; `tests/zoo/` compares losses and gradients with PyTorch's, `bench/learning.py` what
is learned, `bench/workloads.py` speed and memory.
"""

from vpps.zoo.bilstm_char_tagger import BiLSTMCharTagger
from vpps.zoo.bilstm_tagger import BiLSTMTagger
from vpps.zoo.encoder_decoder import EncoderDecoder
from vpps.zoo.language_model import LSTMLanguageModel
from vpps.zoo.lattice_gru import LatticeGRU
from vpps.zoo.lattice_lstm import LatticeLSTM
from vpps.zoo.mv_rnn import MVRNNSentiment
from vpps.zoo.rvnn import RvNNSentiment
from vpps.zoo.task import Settings, Task, setting
from vpps.zoo.td_lstm import TDLSTMSentiment
from vpps.zoo.td_rnn import TDRNNSentiment
from vpps.zoo.tree_fc import TreeFC
from vpps.zoo.tree_gru import TreeGRUSentiment
from vpps.zoo.tree_lstm import ChildSumTreeLSTMSentiment, TreeLSTMSentiment, TwoTypeTreeLSTMSentiment

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
