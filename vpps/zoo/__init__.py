"""Complete models, written as a user would write them. Each family has a file, and all share `classifier.py`.

A `Task` (`task.py`) is the interface of a network to the command line, tests and benches: settings (which become
options), data, `loss`, `outputs` and `scores`. `tasks/` defines the tasks of `vpps-train`. `bench/peers/torch_zoo/` and
`dynet_zoo/` hold the same networks in PyTorch and DyNet, with the same parameter names. `tests/zoo/` compares losses
and gradients with PyTorch, `bench/learning.py` the scores after training, `bench/workloads.py` speed and memory.
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
