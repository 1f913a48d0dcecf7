"""Data set readers, data generators, and input graphs as arrays. This package needs no model, graph or compiler.

A `GraphSet` (`graphset.py`; file format in `graphfile.py`) holds graphs as flat arrays. Children are numbered within
their graph, so a slice of a set is a view. A batch (`graphbatch.py`) gathers ranges of rows and adds the first row of
each graph to its child numbers. Topological levels are computed once, when a set is created. `derived.py` builds sets
from other sets. `synthetic.py` generates data from rules.
"""

from vpps.data.derived import chain_pairs, draw_kinds, pyramids_of_trees
from vpps.data.grapharrays import GraphArrays
from vpps.data.graphbatch import GraphBatch
from vpps.data.graphset import GraphSet
from vpps.data.readers.conll import read_columns, read_conllu
from vpps.data.readers.jsonlines import read_jsonl
from vpps.data.readers.lattice import read_lattices
from vpps.data.readers.sentences import (
    graphs_of_stream,
    graphs_of_tagged,
    graphs_of_text,
    read_parallel,
    read_stream,
    read_tagged,
    read_text,
)
from vpps.data.readers.trees import graphs_of_trees, read_constituents, read_treebank
from vpps.data.spelled import SpelledBatch, SpelledSentences
from vpps.data.statistics import GraphStatistics
from vpps.data.synthetic import (
    synthetic_lattices,
    synthetic_opinions,
    synthetic_parallel,
    synthetic_sentences,
    synthetic_text,
    synthetic_treebank,
    tournaments,
)
from vpps.data.treebank import Tree, Treebank, load_treebank, parse_tree, read_trees
from vpps.data.vocabulary import Vocabulary

__all__ = [
    "GraphArrays",
    "GraphBatch",
    "GraphSet",
    "GraphStatistics",
    "SpelledBatch",
    "SpelledSentences",
    "Tree",
    "Treebank",
    "Vocabulary",
    "chain_pairs",
    "draw_kinds",
    "graphs_of_stream",
    "graphs_of_tagged",
    "graphs_of_text",
    "graphs_of_trees",
    "load_treebank",
    "parse_tree",
    "pyramids_of_trees",
    "read_columns",
    "read_conllu",
    "read_constituents",
    "read_jsonl",
    "read_lattices",
    "read_parallel",
    "read_stream",
    "read_tagged",
    "read_text",
    "read_treebank",
    "read_trees",
    "synthetic_lattices",
    "synthetic_opinions",
    "synthetic_parallel",
    "synthetic_sentences",
    "synthetic_text",
    "synthetic_treebank",
    "tournaments",
]
__dir__ = __all__.copy  # completion shows nothing else
