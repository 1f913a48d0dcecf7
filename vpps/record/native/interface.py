"""Constants and structs shared by Python and the compiled recorder; the build generates `interface.h` from them.

A map's encoding (record/packed.py) starts with a MapForm. The next ints are each child result's shape index among the
zero shapes. Each kind then has a KindForm, an ArgumentForm per vector and list argument, an IntForm per int, a CutForm,
and a ProductsForm per child result that is multiplied separately. A kind ends with two counted lists of int numbers:
the ints of values computed once per distinct combination, and the ints of the rest.
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
    """`arity`: -1 if children are lists; `width`: outputs of a vertex; `n_results`: results that parents read."""


@fields(ints="n_arguments n_lists n_ints")
class KindForm(Structure):
    """Numbers of vector arguments, lists and ints of a vertex."""


OF_INPUT = -1
"""Used in place of a child: the argument is an input."""


@fields(ints="child number")
class ArgumentForm(Structure):
    """A vector argument: a child and its result's number, or OF_INPUT and the input's number. A list argument: its
    first child, and the result's number."""


@fields(ints="column low high")
class IntForm(Structure):
    """An int argument: its input column, its lowest value, and its exclusive upper bound."""


@fields(ints="n_crossing whole n_products")
class CutForm(Structure):
    """Split of a kind (record/distinct.py): number of values computed once per distinct ints, 0 if not split; 1 if this
    is the whole cell; number of child results whose products may be separate."""


@fields(ints="child number n_results")
class ProductsForm(Structure):
    """Products of one child result: the child, the result's number, the number of products."""


REST, ONCE, APART, PRODUCTS = range(4)
"""Contents of a kind's chunk:
REST: its vertices, without the values computed once per distinct ints;
ONCE: the values computed once per distinct ints;
APART: its vertices, without these values and without products of children;
PRODUCTS: products of the first multiplied child result; PRODUCTS + 1 of the second one ...
"""


def header() -> str:
    """Return the text of `interface.h`."""
    structs = (MapForm, KindForm, ArgumentForm, IntForm, CutForm, ProductsForm)
    columns = {"CALL": CALL, "FIRST": FIRST, "LEVEL": LEVEL, "ARGS": ARGS}  # columns of Block.rows
    parts = {"REST": REST, "ONCE": ONCE, "APART": APART, "PRODUCTS": PRODUCTS}
    numbers = columns | parts | {"OF_INPUT": OF_INPUT, "ONE_IN": ONE_IN}
    return "".join(
        (shared_types.constants(numbers), shared_types.enum(ArgumentKind), *map(shared_types.struct, structs))
    )
