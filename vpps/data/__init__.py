"""Readers and generators of data sets. Nothing here needs a model, a graph or a compiler."""

from vpps.data.synthetic import synthetic_treebank
from vpps.data.treebank import Tree, Treebank, load_treebank, parse_tree, read_trees
from vpps.data.vocabulary import Vocabulary

__all__ = ["Tree", "Treebank", "Vocabulary", "load_treebank", "parse_tree", "read_trees", "synthetic_treebank"]
