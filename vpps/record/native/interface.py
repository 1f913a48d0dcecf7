"""What the compiled recorder and Python share. Its header `interface.h` is made of this when it is built.

The form of a map (record/packed.py) is a MapForm, and which of the shapes of zeros each result of a child has; then for
each kind a KindForm, an ArgumentForm for each of its vector and list arguments, an IntForm for each int, a CutForm, a
ProductsForm for each child's result that is multiplied apart, and twice how many of its ints, followed by their
numbers: those of what is computed once for equal ints, and those of the rest.
"""

from __future__ import annotations

from ctypes import Structure

from vpps.kernel import shared_types
from vpps.kernel.shared_types import fields
from vpps.record.call_cache import ArgumentKind
from vpps.record.distinct import ONE_IN
from vpps.record.vertices import ARGS, CALL, FIRST, LEVEL


@fields(ints="arity width n_kinds n_results")
class MapForm(Structure):
    """`arity`: -1 where children are lists; `width`: outputs of a vertex; `n_results`: those that parents read."""


@fields(ints="n_arguments n_lists n_ints")
class KindForm(Structure):
    """How many vector arguments, lists and ints vertices have."""


OF_INPUT = -1
"""In place of a child: the argument is an input."""


@fields(ints="child number")
class ArgumentForm(Structure):
    """A vector argument: which child it comes from, and which of its results it is; OF_INPUT, and which input. A list:
    the first child that is in it, and which of their results it has."""


@fields(ints="column low high")
class IntForm(Structure):
    """An int: where it comes from, its lowest value, and what is past the highest."""


@fields(ints="n_crossing whole n_products")
class CutForm(Structure):
    """How a kind is cut (record/distinct.py): how many values are computed once for equal ints, 0 if it is not cut;
    whether that is all of it; of how many results of children products may be made apart."""


@fields(ints="child number n_results")
class ProductsForm(Structure):
    """Products of one child's result: which child, which of its results, how many products."""


REST, ONCE, APART, PRODUCTS = range(4)
"""What a chunk of a kind holds:
REST: its vertices, without what is computed once for equal ints;
ONCE: what is computed once for equal ints;
APART: its vertices, without that and without products of children;
PRODUCTS: products of the first child's result that is multiplied, PRODUCTS + 1 of the second one ...
"""


def header() -> str:
    """`interface.h`."""
    structs = (MapForm, KindForm, ArgumentForm, IntForm, CutForm, ProductsForm)
    columns = {"CALL": CALL, "FIRST": FIRST, "LEVEL": LEVEL, "ARGS": ARGS}  # of the rows of blocks
    parts = {"REST": REST, "ONCE": ONCE, "APART": APART, "PRODUCTS": PRODUCTS}
    numbers = columns | parts | {"OF_INPUT": OF_INPUT, "ONE_IN": ONE_IN}
    return "".join(
        (shared_types.constants(numbers), shared_types.enum(ArgumentKind), *map(shared_types.struct, structs))
    )
