"""Cells: static functions of primitives, traced once per signature into a list of nodes (Cavs's vertex function F)."""

from __future__ import annotations

import hashlib
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from vpps.errors import DtypeError, IndexRangeError, ShapeError, TraceError
from vpps.model.model import Lookup, Parameter, Transposed
from vpps.ops import OPS, Form, Op, Shape, size
from vpps.ops.dropout import threshold
from vpps.ops.operand import (
    Expression,
    Index,
    ListExpression,
    common_owner,
    interned,
    recorded,
    result_shape,
    shown,
    written,
)
from vpps.text import counted
from vpps.values import as_index, as_number, exact_key, float_word


@dataclass(frozen=True, slots=True)
class Node:
    """One primitive of a traced cell.

    Attributes:
        op: row of the op table.
        inputs: the nodes that this node reads (float operands, then indices); always earlier nodes.
        attrs: static attributes.
        shape: shape of one row of the result.
        domain: 0 for one row per vertex; d >= 1 for one row per element of the lists in domain d.
        parameter: the matrix, vector or table that the node uses.
    """

    op: Op
    inputs: tuple[int, ...]
    attrs: dict[str, Any]
    shape: Shape
    domain: int = 0
    parameter: Parameter | None = None

    @property
    def finds_matrix_in_memory(self) -> bool:
        """True if the node needs its matrix in memory: only matrix-vector products can use a matrix on the chip."""
        p = self.parameter
        return p is not None and len(p.shape) == 2 and self.op.form is not Form.MATVEC and not isinstance(p, Lookup)


class Constant(NamedTuple):
    """A placeholder for a number among a pattern's attributes (`TracedCell`); only a plan has the value.

    Attributes:
        slot: index of the number's magnitude in the program's `constants`.
        negative: True if the number is negative.
        word: index among the slot's words in `TracedCell.words`.
    """

    slot: int
    negative: bool = False
    word: int = 0

    def __neg__(self) -> Constant:
        return self._replace(negative=not self.negative)

    def of(self, constants: Sequence[float]) -> float:
        """Return the number; for a dropout rate, the rate itself, or the threshold or scale factor derived from it."""
        c = constants[self.slot]
        return (-c if self.negative else c, threshold(c), 1 / (1 - c))[self.word]


_OPEN = "value", "rate"  # attributes that may become Constants
_ONE, _INFINITY = float_word(1.0), float_word(float("inf"))
WORDS_OF_CONSTANT = 3


@dataclass(frozen=True, slots=True)
class Vector:
    """A positional argument that is an expression."""

    shape: Shape


@dataclass(frozen=True, slots=True)
class Int:
    """A positional argument that is an int, which differs between vertices."""


@dataclass(frozen=True, slots=True)
class List:
    """A list argument; its length differs between vertices. Shape None: an empty list with an unknown element shape."""

    shape: Shape | None


ArgKind = Vector | Int | List


@dataclass(eq=False, repr=False)
class TracedCell:
    """A cell's program for one signature: nodes in topological order, arguments and results.

    Attributes:
        name: the user's function name.
        kinds: kinds of positional arguments.
        nodes: the primitives, including sources (arguments, indices, parameters).
        arguments: node of each positional argument.
        argument_names: the user's names for them; () if unknown.
        outputs: node of each result.
        single: True if the user's function returned one expression rather than a tuple.
        n_domains: number of list domains.
        list_domains: domain of each list argument, by argument position.
        index_limits: by int argument position, the smallest exclusive upper bound that a use imposes, and that use.
        int_limits: the same bounds in the order of the int arguments, None for an argument that nothing uses.
        lists: domain of each list argument, in order.
        constants: distinct magnitudes of numbers among the attributes, except 0, 1 and infinity (passes rely on these).
        pattern: the program with Constants in place of these numbers, planned once for all values. None without
            constants, or if this is a pattern; its `constants` then come from the first program.
    """

    name: str
    kinds: tuple[ArgKind, ...]
    nodes: list[Node] = field(default_factory=list)
    arguments: list[int] = field(default_factory=list)
    argument_names: tuple[str, ...] = ()
    outputs: tuple[int, ...] = ()
    single: bool = True
    n_domains: int = 0
    list_domains: dict[int, int] = field(default_factory=dict)
    lists: tuple[int, ...] = ()
    int_limits: tuple[tuple[int, str] | None, ...] = ()
    index_limits: dict[int, tuple[int, str]] = field(default_factory=dict)
    constants: tuple[float, ...] = ()
    pattern: TracedCell | None = None

    def __repr__(self) -> str:
        return f"<cell {self.name!r}: {counted(len(self.nodes), 'node')}>"

    @cached_property
    def layout(self) -> tuple[int, int, tuple[Shape, ...]]:
        """Numbers of vector and int arguments, and the results' shapes; valid for a finished program."""
        results = tuple(interned(self.nodes[o].shape) for o in self.outputs)
        return sum(isinstance(k, Vector) for k in self.kinds), len(self.int_limits), results

    @property
    def parameters(self) -> list[Parameter]:
        """The distinct parameters that the program uses."""
        return list(dict.fromkeys(n.parameter for n in self.nodes if n.parameter is not None))

    def place(self, position: int) -> int:
        """Return the index of a positional argument among the arguments of its kind."""
        return sum(isinstance(k, type(self.kinds[position])) for k in self.kinds[:position])

    @property
    def operands(self) -> list[int]:
        """Positions of the arguments that are values: vectors, then lists."""
        return [p for kind in (Vector, List) for p, k in enumerate(self.kinds) if isinstance(k, kind)]

    def with_nodes(self, nodes: Sequence[Node], outputs: Sequence[int]) -> TracedCell:
        """Return the same cell with different nodes; node numbers below `len(self.nodes)` keep their meaning."""
        made = TracedCell.__new__(TracedCell)  # `copy` takes three times as long
        made.__dict__.update(self.__dict__)
        for name in ("layout", "another", "words"):  # cached for the old nodes
            made.__dict__.pop(name, None)
        made.nodes, made.outputs, made.pattern = list(nodes), tuple(outputs), None
        return made

    @cached_property
    def another(self) -> TracedCell:
        """A second copy of a pattern. If programs in a graph differ only in constants, each needs a separate copy."""
        return self.with_nodes(self.nodes, self.outputs)

    @cached_property
    def words(self) -> array[int]:
        """The words that a script may need for each constant: its bits, and two that dropout derives from a rate."""
        found = array("I")
        for c in self.constants:
            found.extend((float_word(c), threshold(c), float_word(1 / (1 - c))))
        return found

    def opened(self) -> TracedCell:
        """Return this program's pattern, with the program's constants as examples."""
        nodes, slots = list(self.nodes), dict[float, int]()
        for i, n in enumerate(nodes):
            if n.attrs and (attrs := opened(n.attrs, slots)) is not n.attrs:
                nodes[i] = Node(n.op, n.inputs, attrs, n.shape, n.domain, n.parameter)  # faster than `replace`
        made = self.with_nodes(nodes, self.outputs) if slots else self
        made.constants = tuple(slots) or self.constants
        return made

    def closed(self, constants: tuple[float, ...]) -> TracedCell:
        """Return a pattern's program, possibly transformed by passes, with these constants."""
        found = _programs.get((self, constants)) if constants else self
        if found is None:
            nodes = list(self.nodes)
            for i, n in enumerate(nodes):
                changed = {k: v.of(constants) for k, v in n.attrs.items() if type(v) is Constant}
                if changed:
                    nodes[i] = Node(n.op, n.inputs, n.attrs | changed, n.shape, n.domain, n.parameter)
            found = self.with_nodes(nodes, self.outputs)
            found.constants, found.pattern, found.__dict__["layout"] = constants, self, self.layout
            found = _programs.setdefault((self, constants), found)
        return found


def opened(attrs: dict[str, Any], slots: dict[float, int]) -> dict[str, Any]:
    """Return the attributes with Constants in place of numbers; the same object if there are no numbers.

    Args:
        slots: slot for each magnitude; new magnitudes are added.
    """
    found = attrs
    for name in _OPEN:
        value = attrs.get(name)
        if type(value) is float and 0 < (word := float_word(abs(value))) < _INFINITY and word != _ONE:
            found = found | {name: Constant(slots.setdefault(abs(value), len(slots)), value < 0)}
    return found


def _attrs_key(attrs: dict[str, Any]) -> Any:
    quick = all(type(value) in (int, Constant) for value in attrs.values())  # true for most nodes
    return tuple(attrs.items()) if quick else exact_key(attrs)


def digest_of(cell: TracedCell) -> str:
    """Return a short hash of a program (operations, wiring, shapes, attributes, parameters); equal in all processes."""
    digest = hashlib.sha256(repr((cell.kinds, cell.outputs, cell.single)).encode())
    for node in cell.nodes:
        attributes = sorted(node.attrs.items())
        parameter = node.parameter.name if isinstance(node.parameter, Parameter) else None
        digest.update(repr((node.op.name, node.inputs, attributes, node.shape, node.domain, parameter)).encode())
    return digest.hexdigest()[:16]


# Weak references: a program lives as long as a cell, a graph or a handle uses it.
_programs: weakref.WeakValueDictionary[Any, TracedCell] = weakref.WeakValueDictionary()


def shared(program: TracedCell, origin: Any) -> TracedCell:
    """Return an equal program from the same origin if there is one, else this newly traced program. So a function that
    is redefined for every batch is planned and compiled only once.

    Programs are compared, not their functions' closures: a function may read anything while it is traced.

    Args:
        origin: the code of the function, or the program that this one was derived from.
    """
    if isinstance(origin, TracedCell):
        origin = origin.pattern or origin
    c = program.opened()
    wiring = c.outputs, c.single, tuple(c.arguments), c.lists, c.n_domains, c.int_limits
    # Parameters are compared by address: while the key is in use, its program keeps them alive.
    nodes = [(id(n.op), n.inputs, _attrs_key(n.attrs), n.shape, n.domain, id(n.parameter)) for n in c.nodes]
    pattern = _programs.setdefault((origin, c.name, c.kinds, c.argument_names, wiring, tuple(nodes)), c)
    if c is program:
        return pattern
    program.constants, program.pattern = c.constants, pattern
    return _programs.setdefault((pattern, c.constants), program)


PRODUCTS = ("affine", "affine_transposed")
"""Ops that users write as a product of a rank-2 parameter and another operand."""


class ElementShapeFound(Exception):
    """Raised when a use of a list argument shows its unknown element shape; tracing then restarts."""

    def __init__(self, position: int, shape: Shape) -> None:
        self.position = position
        self.shape = shape


LONG = 1 << 26
"""Placeholder length: vectors of at least half this length are of unknown length or are made of such vectors."""

UNKNOWN: Shape = (LONG,)  # element shape of an empty list until a use shows it
PAIRS = frozenset(("dot", "mse", "squared_distance", "cosine"))  # ops whose two operands have the same shape


class CellTrace:
    """Records the ops that a cell's function applies to symbolic arguments."""

    def __init__(self, name: str, kinds: tuple[ArgKind, ...]) -> None:
        self.cell = TracedCell(name, kinds)
        self.recorders: dict[Any, Any] = {}  # (Recorder)
        self._unknown: dict[int, int] = {}  # node of shape UNKNOWN -> list argument with that element shape
        # Concatenation with such nodes -> (argument, number of other floats, number of its elements).
        self._incomplete: dict[int, tuple[int, int, int]] = {}
        self._domain_of: list[int] = []  # union-find over list domains: `each` over two lists joins their domains
        self._parameter_nodes: dict[Parameter, int] = {}
        self._mapped: list[int] = []  # lists that `each` is currently mapping

    def describe(self) -> str:
        return f"cell {self.cell.name!r}"

    def foreign(self, what: str, x: Any) -> TraceError:
        return TraceError(
            f"{what}: {self.describe()} closes over {x!r}; a cell may close over parameters and Python constants only. "
            "Pass the expression to the cell as an argument"
        )

    # ---- nodes

    def add(
        self,
        op: str,
        inputs: Sequence[int] = (),
        shape: Shape = (),
        domain: int = 0,
        parameter: Parameter | None = None,
        attrs: dict[str, Any] | None = None,
    ) -> int:
        """Append a node and return its number."""
        self.cell.nodes.append(Node(OPS[op], tuple(inputs), attrs or {}, shape, domain, parameter))
        return len(self.cell.nodes) - 1

    def argument(self, position: int, kind: ArgKind) -> Expression | Index | ListExpression:
        """Return the symbolic value of a positional argument."""
        if isinstance(kind, Int):
            node = self.add("index", attrs={"position": position})
            self.cell.arguments.append(node)
            return Index(self, node)
        domain = 0
        if isinstance(kind, List):
            self._domain_of.append(len(self._domain_of) + 1)
            domain = self._domain_of[-1]
            self.cell.list_domains[position] = domain
        shape = UNKNOWN if kind.shape is None else kind.shape
        node = self.add("argument", shape=shape, domain=domain, attrs={"position": position})
        if kind.shape is None:
            self._unknown[node] = position
        self.cell.arguments.append(node)
        return (ListExpression if domain else Expression)(self, node, shape)

    def domain(self, node: int) -> int:
        """Return the (joined) domain of a node."""
        d = self.cell.nodes[node].domain
        while d and self._domain_of[d - 1] != d:
            d = self._domain_of[d - 1]
        return d

    def join(self, a: int, b: int) -> int:
        """Merge two list domains, whose lists have equal lengths at every vertex."""
        if a != b:
            self._domain_of[max(a, b) - 1] = min(a, b)
        return min(a, b)

    @contextmanager
    def mapping(self, node: int) -> Iterator[None]:
        """Mark a list as being mapped by `each`. Inside, one symbolic element stands for all elements, so mapping the
        list again would pair every element with itself."""
        if any(self.domain(outer) == self.domain(node) for outer in self._mapped):
            raise TraceError(
                f"{self.describe()}: each inside each over the same list (or one mapped together with it): the inner "
                "one would see the outer one's element only; reduce the list before the outer each"
            )
        self._mapped.append(node)
        try:
            yield
        finally:
            self._mapped.pop()

    def node_of(self, x: Any, op: str) -> int:
        """Return the node for an operand; each parameter becomes one source node."""
        if isinstance(x, Expression):
            return x.ref
        check_operand(x, op, self.describe())
        if x not in self._parameter_nodes:
            self._parameter_nodes[x] = self.add("parameter", shape=x.shape, parameter=x)
        return self._parameter_nodes[x]

    def index_of(self, x: Any, op: str, limit: int, what: str) -> int:
        """Return the node for an int operand; record the bound that this use imposes."""
        where = f"{self.describe()}: {op}"
        if isinstance(x, Index):
            position = self.cell.nodes[x.ref].attrs["position"]
            old = self.cell.index_limits.get(position)
            if old is None or limit < old[0]:
                self.cell.index_limits[position] = (limit, what)
            return x.ref
        value = as_index(x)
        if value is None:
            raise DtypeError(f"{where}: expected an int or an int argument of the cell, got {type(x).__name__}")
        check_index(value, limit, where, what)
        return self.add("index", attrs={"constant": value})

    def apply_again(self, op: str, operands: Sequence[Any]) -> Expression:
        """Record an op on a symbol that outlived its trace (Recorder)."""
        return common_owner(operands, op).apply(op, operands, {})

    def apply(self, op: str, operands: Sequence[Any], attrs: dict[str, Any]) -> Expression:
        """Record one op (Recorder)."""
        return APPLY.get(OPS[op].form, CellTrace._plain)(self, op, operands, attrs)

    def _result(
        self, op: str, nodes: list[int], shape: Shape, parameter: Parameter | None, attrs: dict[str, Any]
    ) -> Expression:
        domain = 0
        for n in nodes:
            d = self.domain(n)
            if d and domain and d != domain:
                raise TraceError(
                    f"{self.describe()}: {op} mixes elements of two lists; map both at once: "
                    "vpps.each(lambda a, b: ..., xs, ys)"
                )
            domain = domain or d
        node = self.add(op, nodes, shape, domain, parameter, attrs)
        return Expression(self, node, shape)

    def _plain(self, op: str, operands: Sequence[Any], attrs: dict[str, Any]) -> Expression:
        floats = operands[: len(operands) - OPS[op].indices]
        nodes = [self.node_of(x, op) for x in floats]
        shapes = [self.cell.nodes[n].shape for n in nodes]
        if any(self._is_unknown(n) for n in nodes):
            return self._unknown_result(op, nodes, shapes, attrs)
        shape = result_shape(op, shapes, attrs, self.describe())
        if OPS[op].form is Form.MAP and len(shape) == 2:
            for k in (k for k, s in enumerate(shapes) if s == shape[1:]):  # broadcast a vector over the matrix's rows
                ones = self.apply("shift", [self.apply("zeros", [], {"shape": shape[:1]})], {"value": 1.0})
                nodes[k] = self._result("outer", [ones.ref, nodes[k]], shape, None, {}).ref
        if OPS[op].indices:
            what = "number of elements" if op == "pick" else "number of classes"
            nodes.append(self.index_of(operands[-1], op, shapes[0][0], what))
        return self._result(op, nodes, shape, None, attrs)

    def _is_unknown(self, node: int) -> bool:
        return node in self._unknown or node in self._incomplete

    def _unknown_result(self, op: str, nodes: list[int], shapes: list[Shape], attrs: dict[str, Any]) -> Expression:
        """Record an op on elements of a list that was empty in the first call; the other operand shows their shape."""
        first = next(n for n in nodes if self._is_unknown(n))
        position = self._unknown[first] if first in self._unknown else self._incomplete[first][0]
        known = [s for n, s in zip(nodes, shapes, strict=True) if not self._is_unknown(n) and s != ()]
        if OPS[op].form is Form.CONCAT and {self._unknown.get(n) for n in nodes if self._is_unknown(n)} == {position}:
            # A later product shows the shape: its matrix has as many columns as the concatenation has floats.
            result = self._result(op, nodes, UNKNOWN, None, attrs)
            others = sum(map(size, known)) + sum(s == () for s in shapes)
            self._incomplete[result.ref] = (position, others, sum(n in self._unknown for n in nodes))
            return result
        if op == "matmul" and not self._is_unknown(nodes[0]) and len(shapes[0]) == 2 and not attrs["transposed_b"]:
            raise self._found(first, (shapes[0][0 if attrs["transposed_a"] else 1],))  # as for a parameter
        if OPS[op].form not in (Form.MAP, Form.DROPOUT) and not (op in PAIRS and len(known) == 1):
            return self._untold(position, op, nodes, attrs)
        if known:
            raise self._found(first, known[0])
        result = self._result(op, nodes, UNKNOWN, None, attrs)
        self._inherit(result.ref, first)
        return result

    def _inherit(self, node: int, of: int) -> None:
        """Mark a node's shape as unknown if another node's shape is unknown."""
        if of in self._unknown:
            self._unknown[node] = self._unknown[of]
        elif of in self._incomplete:
            self._incomplete[node] = self._incomplete[of]

    def _found(self, node: int, shape: Shape) -> ElementShapeFound:
        """Return the exception to raise when a node of unknown shape turns out to have this shape."""
        if node in self._unknown:
            return ElementShapeFound(self._unknown[node], shape)
        position, others, parts = self._incomplete[node]
        return ElementShapeFound(position, (max(size(shape) - others, 0) // parts,))

    def _untold(self, position: int, op: str, nodes: list[int], attrs: dict[str, Any]) -> Expression:
        """Handle an op on elements of unknown shape if the op does not show the shape."""
        raise self._untellable(position, f"{shown(op)} does not tell")

    def _untellable(self, position: int, what: str) -> TraceError:
        """Return the error for an argument whose element shape remains unknown; `what` is the reason."""
        return TraceError(
            f"{self.describe()}: list argument {position + 1} is empty in its first call and {what} the shape of its "
            "elements; declare it, such as @vpps.cell(elements={'hs': (64,)}) for an argument hs"
        )

    def _affine(self, op: str, operands: Sequence[Any], attrs: dict[str, Any]) -> Expression:
        matrix, x = operands
        if not isinstance(matrix, Parameter) or isinstance(matrix, Lookup):
            check_operand(matrix, "@", self.describe())
            raise ShapeError(f"{self.describe()}: @ expects a matrix on its left, got {matrix!r}")
        node = self.node_of(x, "@")
        if self._is_unknown(node) and len(matrix.shape) == 2:
            raise self._found(node, (matrix.shape[op == "affine"],))
        shape = result_shape(op, [matrix.shape, self.cell.nodes[node].shape], attrs, self.describe())
        if op == "affine" and len(shape) == 2:
            op = "affine_columns"
        return self._result(op, [node], shape, matrix, attrs)

    def _matmul(self, op: str, operands: Sequence[Any], attrs: dict[str, Any]) -> Expression:
        a, b = operands
        if op == "matmul" and type(b) is Parameter and len(b.shape) == len(a.shape) == 2:
            product: Expression = (b.T @ a.T).T
            return product
        return self._plain(op, operands, attrs)

    def _dropout(self, op: str, operands: Sequence[Any], attrs: dict[str, Any]) -> Expression:
        """Record a dropout. A cell's dropouts are numbered, because each uses different random numbers."""
        number = [n.op.form for n in self.cell.nodes].count(Form.DROPOUT)
        return self._plain(op, operands, attrs | {"number": number})

    def _lookup(self, op: str, operands: Sequence[Any], attrs: dict[str, Any]) -> Expression:
        table, row = operands
        check_table(table, self.describe())
        node = self.index_of(row, op, table.shape[0], f"rows of {table.name!r}")
        return self._result(op, [node], table.shape[1:], table, attrs)

    def _list_op(self, op: str, operands: Sequence[Any], attrs: dict[str, Any]) -> Expression:
        (xs,) = operands
        domain = self.domain(xs.ref) if OPS[op].form is Form.LIST_MAP else 0
        node = self.add(op, [xs.ref], xs.shape, domain, attrs=attrs)
        self._inherit(node, xs.ref)
        return Expression(self, node, xs.shape)

    def _source(self, op: str, operands: Sequence[Any], attrs: dict[str, Any]) -> Expression:
        shape = attrs["shape"]
        return Expression(self, self.add(op, shape=shape, attrs=attrs), shape)

    # ---- the end

    def finish(self, result: Any) -> TracedCell:
        """Check the results of the cell's function and close the trace."""
        values = result if isinstance(result, tuple | list) else (result,)
        if not values:
            raise TraceError(f"{self.describe()} returns nothing; it must return one expression or a tuple of them")
        nodes = []
        for v in values:
            if isinstance(v, Parameter):
                nodes.append(self.node_of(v, "return"))
            elif not isinstance(v, Expression | ListExpression) or v.owner is not self:
                raise TraceError(
                    f"{self.describe()} returns {v!r}; it must return expressions computed from its arguments"
                )
            elif self.domain(v.ref):
                raise TraceError(
                    f"{self.describe()} returns one value per list element; reduce it with vpps.sum or its like"
                )
            elif v.ref in self._unknown:
                raise self._untellable(self._unknown[v.ref], "nothing in the cell tells")
            else:
                nodes.append(v.ref)
        cell = self.cell
        cell.outputs = tuple(nodes)
        cell.single = not isinstance(result, tuple | list)
        # Joined domains get consecutive final numbers, which are stored in every node.
        roots = sorted({self.domain(i) for i, n in enumerate(cell.nodes) if n.domain})
        number = {0: 0} | {d: k + 1 for k, d in enumerate(roots)}
        finals = [number[self.domain(i)] for i in range(len(cell.nodes))]
        cell.nodes = [n if n.domain == d else replace(n, domain=d) for n, d in zip(cell.nodes, finals, strict=True)]
        cell.n_domains = len(roots)
        cell.list_domains = {p: cell.nodes[cell.arguments[p]].domain for p in cell.list_domains}
        cell.lists = tuple(cell.list_domains.values())
        cell.int_limits = tuple(cell.index_limits.get(p) for p, k in enumerate(cell.kinds) if isinstance(k, Int))
        return cell


APPLY: dict[Form, Callable[[CellTrace, str, Sequence[Any], dict[str, Any]], Expression]] = {
    Form.MATVEC: CellTrace._affine,
    Form.PACKED_MATMUL: CellTrace._affine,
    Form.MATMUL: CellTrace._matmul,
    Form.DROPOUT: CellTrace._dropout,
    Form.LOOKUP: CellTrace._lookup,
    Form.LIST_REDUCE: CellTrace._list_op,
    Form.LIST_MAP: CellTrace._list_op,
    Form.INPUT: CellTrace._source,
    Form.ZEROS: CellTrace._source,
}


def check_operand(x: Any, op: str, where: str) -> None:
    """Raise if `x` cannot be a float operand."""
    op = written(op)
    if isinstance(x, Lookup):
        remedy = "take a row of it with lookup(table, i)"
        if op == "@":
            remedy = (
                f"declare it with model.lookup({x.name!r}, {x.shape}, dense=True) to multiply by it; its "
                "gradient is then dense. For a row of it there is lookup(table, i)"
            )
        raise ShapeError(f"{where}: {op} of {x!r}: {remedy}")
    if isinstance(x, Expression | Parameter):
        return
    if isinstance(x, Transposed):
        raise ShapeError(
            f"{where}: {op} of {x!r}: it can stand on the left of @ only, as in W.T @ x; for M @ W.T write (W @ M.T).T"
        )
    if isinstance(x, Index):
        raise TraceError(
            f"{where}: {op} takes no int here; only vpps.lookup, cross_entropy, hinge and pick can use {x!r}"
        )
    if isinstance(x, ListExpression):
        remedy = "use vpps.each(f, xs), or a reduction such as vpps.sum(xs)"
        if op in ("cross_entropy", "pick", "hinge"):
            remedy = (
                "pass the intended element as a separate argument; the loss of scores is "
                "vpps.logsumexp(scores) - score (the recipe 'Pointers and copying')"
            )
        raise TraceError(f"{where}: {op} of {x!r}: {remedy}")
    if as_number(x) is not None:
        remedy = "graph.input(number) makes it an expression"
        if op in ("maximum", "minimum"):
            remedy = f"vpps.clamp(x, {'low' if op == 'maximum' else 'high'}={x!r}) takes it"
        raise DtypeError(f"{where}: {op} takes expressions and parameters, not the number {x!r}; {remedy}")
    if isinstance(x, list | tuple) and any(isinstance(item, Expression) for item in x):
        raise DtypeError(
            f"{where}: {op} takes one expression, not a list; vpps.stack(xs) makes a vector of scalars, a matrix of "
            "vectors"
        )
    kind = f"an array of shape {x.shape}" if hasattr(x, "shape") else f"{type(x).__name__} {x!r}"
    raise DtypeError(
        f"{where}: {op} takes expressions and parameters, not {kind}; bring data into the graph with graph.input(array)"
    )


def check_index(value: int, limit: int, where: str, what: str) -> None:
    """Raise IndexRangeError unless 0 <= value < limit."""
    if not 0 <= value < limit:
        raise IndexRangeError(f"{where}: index {value} is out of range; {what}: {limit}, so 0 to {limit - 1}")


def check_table(table: Any, where: str) -> None:
    """Raise unless `table` has rows to look up."""
    if not isinstance(table, Lookup) and not (isinstance(table, Parameter) and len(table.shape) == 2):
        meant = "; pass its attribute table" if isinstance(getattr(table, "table", None), Parameter) else ""
        raise DtypeError(
            f"{where}: lookup expects a table made by model.lookup(...), or a parameter of rank 2, got {table!r}{meant}"
        )


def endless(recorder: CellTrace) -> str:
    """Return the error message for a function that calls itself endlessly."""
    return (
        f"{recorder.describe()} calls itself without end: a cell is traced once, on symbols, so the recursion cannot "
        "end; pass it the state of its children as an argument, and call it for every vertex, or use graph.map"
    )


def trace(name: str, function: Callable[..., Any], kinds: tuple[ArgKind, ...], statics: dict[str, Any]) -> TracedCell:
    """Run `function` once on symbolic arguments and return its program. Raises TraceError, ShapeError, DtypeError.

    If a list is empty, the trace runs until a use shows the shape of its elements, then restarts with that shape.
    """
    while True:
        recorder = CellTrace(name, kinds)
        try:
            arguments = [recorder.argument(i, k) for i, k in enumerate(kinds)]
            return recorder.finish(recorded(recorder, function, *arguments, **statics))
        except RecursionError:
            raise TraceError(endless(recorder)) from None
        except ElementShapeFound as found:
            kinds = (*kinds[: found.position], List(found.shape), *kinds[found.position + 1 :])
