"""Whole models, written as a user would write them."""

from vpps.zoo.tree_lstm import TreeLSTMSentiment
from vpps.zoo.tree_lstm_child_sum import ChildSumTreeLSTMSentiment

__all__ = ["ChildSumTreeLSTMSentiment", "TreeLSTMSentiment"]
