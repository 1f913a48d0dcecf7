"""From files to `GraphSet`s. All readers take several files, plain or `.gz`, and `like`, a set converted before.

What is converted for evaluation needs the numbers of words and labels that training saw: `like=train` takes them,
and the arity, from there. Words that it does not know become 0; labels that it does not know are an error.
"""

from vpps.data.readers.jsonlines import read_jsonl
from vpps.data.readers.lattice import read_lattices
from vpps.data.readers.programs import read_programs
from vpps.data.readers.sentences import (
    BOUNDARY,
    graphs_of_tagged,
    graphs_of_text,
    read_parallel,
    read_tagged,
    read_text,
)
from vpps.data.readers.stream import graphs_of_stream, read_stream
from vpps.data.readers.trees import graphs_of_trees, read_treebank

__all__ = [
    "BOUNDARY",
    "graphs_of_stream",
    "graphs_of_tagged",
    "graphs_of_text",
    "graphs_of_trees",
    "read_jsonl",
    "read_lattices",
    "read_parallel",
    "read_programs",
    "read_stream",
    "read_tagged",
    "read_text",
    "read_treebank",
]
