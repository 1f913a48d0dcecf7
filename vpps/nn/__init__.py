"""Ready-made cells: each declares its parameters in a scope of the model and has functions to call per vertex."""

from vpps.nn.attention import attend
from vpps.nn.lstm import LSTM
from vpps.nn.tree_lstm import ChildSumTreeLSTM, NaryTreeLSTM

__all__ = ["LSTM", "ChildSumTreeLSTM", "NaryTreeLSTM", "attend"]
