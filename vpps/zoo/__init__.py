"""Whole models, written as a user would write them."""

from vpps.zoo.tree_lstm import TreeLSTMSentiment

__all__ = ["TreeLSTMSentiment"]
