"""Graph: one mini-batch's computation. Calls of cells are recorded as vertices, in flat lists for each cell."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any, NoReturn, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpps.errors import DtypeError, GraphError, IndexRangeError, ShapeError
from vpps.graph.drawing import Drawing, draw
from vpps.hints import Hinting
from vpps.interop import detached, requires_gradient
from vpps.model.model import Lookup, Parameter
from vpps.ops import OPS, Shape
from vpps.ops.operand import LARGEST, Expression, IntArray, Recent, interned, recorded, result_shape, shown
from vpps.ops.operand import common_owner as recorder_of
from vpps.record import vertices
from vpps.record.bulk import record_map
from vpps.record.cell import Cell, R
from vpps.record.chunks import Chunk
from vpps.record.examples import MOST, NONE, UNNUMBERED, ExampleNumbers
from vpps.record.inputs import Cells
from vpps.record.rows import Rows, value_ids
from vpps.record.rowwise import apply_to_rows, call_on_rows, checked_floats, has_rows, lookup_rows, record_floats
from vpps.record.trace import (
    PRODUCTS,
    Int,
    TracedCell,
    Vector,
    check_index,
    check_operand,
    check_table,
    opened,
    shared,
    trace,
)
from vpps.record.typed_map import typed_map
from vpps.record.vertices import Block, extend
from vpps.text import dir_without
from vpps.values import Float32, as_count, as_flag, as_float32, as_index, check_callable, exact_key, float_word

# Programs of bare ops without parameters, shared by all graphs; models keep the programs of ops with parameters.
_bare_programs = Recent()


_numbers = itertools.count(1)

APART = "let one thread at a time record in a graph, or give each a graph of its own"
_DRAWN = 100  # number of vertices that a notebook shows
_VALUES = Expression, Rows
_OF_ROWS: Shape = (-1, -1)  # used as the element shape of a list that contains rows

# Ops with a Python constant: the op that takes an operand instead and gives the same bits; True if it comes first.
CONSTANT_OPS = {
    "scale": ("mul", False),
    "shift": ("add", False),
    "at_least": ("maximum", True),
    "at_most": ("minimum", True),
    "over": ("div", True),
    "above": ("greater", False),
    "below": ("greater", True),
    "not_below": ("greater_equal", False),
    "not_above": ("greater_equal", True),
    "equals": ("equal", False),
    "given": ("keep", False),
    "unless": ("drop", False),
}
WIDE = 32  # maximum number of operands with the same shape in one `concat`
_NUMBERED = ("scale", "shift")  # their constants are numbered like vertices, for dropout masks


class Graph(Hinting):
    """The computation graph of one mini-batch: for every batch, build a new one or let it grow.

    Only one thread at a time may record in a graph; another thread may take over between two calls.

    `lookup`, `input` and `zeros` make leaves; operators, functions and cells on expressions make everything else.
    """

    __slots__ = (
        "__weakref__", "_constants", "_inputs", "_tape", "_thread", "_zeros", "blocks", "examples",
        "number", "recorders", "tensors",
    )  # fmt: skip

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.blocks: dict[TracedCell, Block] = {}  # by pattern, see TracedCell.pattern
        # For each Cell, table or kind of op: `Block.record` of the latest call without keyword arguments.
        self.recorders: dict[Any, Callable[[Graph, Sequence[Any]], Any]] = {}
        self._tape = vertices.new_tape()
        # Value ids, not expressions: expressions would keep the graph alive until a garbage collection.
        self._zeros: dict[Shape, int] = {}
        self._inputs: dict[tuple[Shape, bool], Block] = {}
        self._constants: dict[tuple[int, bool], int] = {}
        # PyTorch tensors that require gradients, their versions, and value ids and shape of the inputs made from them.
        self.tensors: list[tuple[Any, int | None, Any, Shape]] = []
        # Vertices with known examples: first recording index, number of vertices (None: all later ones), example
        # numbers. If entries overlap, the later entry applies.
        self.examples: list[tuple[int, int | None, int | ExampleNumbers]] = []
        self._thread: int | None = None  # the thread that records an example

    def __repr__(self) -> str:
        return f"<{self.describe()}>"

    def describe(self) -> str:
        """Return number and size: each batch has a separate graph, and mixing graphs up is a common mistake."""
        return f"graph {self.number} of {self.n_calls} {'vertex' if self.n_calls == 1 else 'vertices'}"

    def __deepcopy__(self, memo: object = None) -> NoReturn:
        raise GraphError(
            "a graph cannot be pickled or copied: record it in the process that uses it; its source, such as a "
            "vpps.data.GraphSet, can be sent to another process"
        )

    __copy__ = __reduce__ = __deepcopy__

    @property
    def n_calls(self) -> int:
        """Number of vertices recorded so far."""
        return self._tape.n_calls

    @property
    def n_values(self) -> int:
        """Number of value ids: the results of all vertices."""
        return len(self._tape.levels)

    def draw(self, calls: int | None = None) -> Drawing:
        """Draw the graph, or its first vertices, coloured by level. Use `.dot()` (for Graphviz), `.svg()` or `str`."""
        return draw(self, calls)

    def _repr_html_(self) -> str:
        drawn = self.draw(_DRAWN)._repr_html_() if len(self) else ""
        return f"<p>{self.describe()}</p>{drawn}"

    __dir__ = dir_without(
        "apply apply_again bare_program block_of blocks call_cell check_owns examples foreign input_program "
        "level_of levels_of make_vertices note_examples number record_chunk record_values recorders reduce tensors "
        "zeros_of"
    )

    def foreign(self, what: str, x: Any) -> GraphError:
        return GraphError(
            f"{what}: the operands belong to two graphs ({self.describe()}, {x.owner.describe()}); "
            "is one of them left over from an earlier batch?"
        )

    def __len__(self) -> int:
        """Return the number of vertices."""
        return self.n_calls

    # ---- leaves

    @overload
    def lookup(self, table: Parameter, row: int | np.integer[Any]) -> Expression: ...
    @overload
    def lookup(self, table: Parameter, row: IntArray | Sequence[int]) -> Rows: ...
    def lookup(self, table: Parameter, row: Any) -> Any:
        """Return a row of an embedding table; `Rows` for an array or list of ints. Raises IndexRangeError, DtypeError.

        The table may be a rank-2 parameter, for example if `E @ h` with the same weights gives the logits. Its gradient
        is then dense, and updates change all rows.
        """
        record = self.recorders.get(table) if isinstance(table, Parameter) else None
        result: Expression | None = None if record is None else record(self, (row,))
        if result is None:
            check_table(table, self._where("lookup"))
            if getattr(row, "ndim", 0) or isinstance(row, list | tuple | range):
                return lookup_rows(self, table, row)
            result = self.apply("lookup", [table, row], {}, table)
        return result

    def input(self, array: ArrayLike, grad: bool = False) -> Expression:
        """Turn data into a leaf, copying it now. With `grad=True`, `handle.input_gradient` can read its gradient back.

        The array may be in GPU memory, from CuPy, PyTorch, JAX or Numba. Once its computation has finished, it is
        copied to the host, which assembles the batch. Pass `grad=True` with a PyTorch tensor that requires gradients;
        `vpps.torch.Module` passes its gradient on.

        Raises:
            DtypeError: the data cannot be converted to float32 without loss, or cannot be read from a GPU.
            ShapeError: the rank is above 2, or there are no elements.
        """
        if grad is not False:
            grad = as_flag(grad, "input(grad)")
        data = as_float32(detached(array) if grad else array, self._where("input"))
        if data.ndim > 2 or data.size == 0:
            raise ShapeError(
                f"{self._where('input')}: expected a scalar, vector or matrix with elements, got shape {data.shape}"
            )
        result = self._input(data.reshape(-1), data.shape, grad)
        if grad:
            self._remember(array, result)
        return result

    def _remember(self, array: Any, made: Expression | Rows) -> None:
        """Keep a tensor that requires gradients together with the inputs made from it."""
        if requires_gradient(array):
            version = None if array.is_inference() else int(array._version)  # inference tensors have no version counter
            self.tensors.append((array, version, value_ids(made), made.shape))  # an expression would hold the graph

    def _input(self, data: Float32, shape: Shape, grad: bool) -> Expression:
        block = self._inputs.get((shape, grad))
        if block is None:
            block = self._inputs[shape, grad] = self.block_of(self.input_program(shape, grad))
        result: Expression = block.append(self, [], [], [], data)
        return result

    def input_program(self, shape: Shape, grad: bool) -> TracedCell:
        """Return the program for inputs of a shape."""
        attrs = {"shape": shape, "grad": grad}
        return self.bare_program(("input", shape, grad), None, "input", [], attrs)

    def zeros(self, n: int) -> Expression:
        """Return a vector of n zeros, which all calls with that n share; it has no gradient."""
        width = n if type(n) is int else as_index(n)
        if width is None or not 1 <= width <= LARGEST:
            raise ShapeError(f"{self._where('zeros')}: expected a positive int, at most {LARGEST}, got {n!r}")
        return self.zeros_of((width,))

    def zeros_of(self, shape: Shape) -> Expression:
        """Return zeros of any shape, which all calls with that shape share."""
        ref = self._zeros.get(shape)
        if ref is None:
            ref = self._zeros[shape] = self._shared(self.apply("zeros", [], {"shape": shape}))
        return Expression(self, ref, interned(shape))

    def rows(self, array: ArrayLike, grad: bool = False) -> Rows:
        """Turn data into leaves, one per row, like calling `input` on each row but in one call.

        Args:
            array: (n,) scalars, (n, width) vectors or (n, rows, columns) matrices; copied now.
            grad: if True, `handle.input_gradient(rows)` can read back gradients, (n, ...). For PyTorch tensors, see
                `input`.

        Raises:
            DtypeError, ShapeError: as for `input`.
        """
        grad = as_flag(grad, "rows(grad)")
        data = checked_floats(detached(array) if grad else array, self._where("rows"))
        rows = record_floats(self, data, grad)
        if grad:
            self._remember(array, rows)
        return rows

    @typed_map
    def map(
        self,
        cells: Cells,
        kind: Any = None,
        children: Any = None,
        inputs: Any = None,
        *,
        state: Any = None,
        levels: Any = None,
        distinct: Any = False,
        examples: Any = None,
        kinds: Any = None,
    ) -> Any:
        """Record n vertices at once from data about their structure: Cavs's input graphs (Xu et al. 2018, section 3.1).

        The results equal those of calling the cells one by one in the rows' order, bit for bit. If a row precedes its
        children, no such calls exist. Values then equal those of calls in any possible order, bit for bit; but
        gradients are summed in the rows' order instead of call order.

            h, c = graph.map([leaf, inner], kind=kind, children=children, inputs={"word": words})
            loss = vpps.sum(vpps.cross_entropy(Wo @ h + bo, labels))

        A cell gets its arguments by name and by position. A parameter named in `inputs` gets that input. The other
        parameters get the children's results. With `children` of shape (n, arity), these are the results of child 0 in
        the order in which a cell returns them, then those of child 1, as in `inner(h_left, c_left, h_right, c_right)`;
        a cell may omit the last children, and a leaf takes no children. With CSR children, each parameter is a list,
        one per result: `node(x, hs, cs)`. A cell may instead use Cavs's own calls: `vpps.gather`, `vpps.pull`,
        `vpps.scatter`, `vpps.push`.

        Args:
            cells: a cell (or plain function), a sequence of them that `kind` selects from, or a dict of them by kind,
                `{"leaf": leaf, "inner": inner}`. Functions that are new in every batch are traced again, which takes
                time, but planned once if they compute the same results.
            kind: (n,) ints; each vertex's kind, an index into `cells`.
            children: (n, arity) ints, or (n,) for one child each, or CSR: offsets (n + 1,) and indices. The ints are
                rows of this map, in any order; -1 reads zeros and gets no gradient.
            inputs: by name, a row per vertex: ints (n,); floats (n, width) or (n, rows, columns), which become
                `graph.rows`; `Rows`, or a list of n expressions; or a list per vertex as `(offsets (n + 1,), Rows)`,
                for example a value per child, `(batch.child_offsets, rows)`. All vertices share a single int or
                expression. Entries for vertices whose kind does not use an input are ignored.
            state: shapes (or lengths) of the children's results; needed only if the cells do not show them.
            levels: (n,) longest distance of each vertex from a vertex without children, for example from a
                `vpps.data.GraphSet`; saves computing levels. Children must have lower levels; this is checked.
            distinct: compute shared parts of vertices with equal ints once. If part of a cell depends only on ints and
                contains a product, such as `W @ lookup(words, word)`, it gets one vertex per distinct combination of
                ints. The rest of the cell reads its results; nothing is left if the whole cell depends only on ints.
                Half the words in a batch of sentences are repetitions. If leaves depend only on ints, products of equal
                children are also computed once, provided this saves a tenth of them. Such a cell multiplies the results
                of at least two children from a table: `U_l @ h_left + U_r @ h_right`, or `vpps.nn` with `per_child`.
                Values are bit-identical; gradients differ by rounding, because they are summed before they are
                multiplied. Dropout still uses a mask per vertex, but masks differ from those without `distinct`,
                because vertices are numbered differently.
            examples: (n,) ints, the example in the whole mini-batch that each vertex belongs to, as in a `GraphBatch`'s
                `structure`. Dropout masks then depend on the example and the position within it, as for calls
                `with graph.example(k)`, not on the process. Default: the examples of rows in `inputs`, if any.
            kinds: the name of each kind by number, as in a `GraphBatch`'s `structure`; needed for `cells` by name.

        Returns:
            `Rows` with n rows for each of the cells' results (a tuple if there are several), in vertex order.

        Raises:
            GraphError: a cycle, wrong levels; a kind without a cell, a cell without a kind; inputs that no cell uses,
                arguments without a value; rows that belong to another graph.
            IndexRangeError: a child, kind or input is out of range.
            DtypeError, ShapeError: arrays of the wrong type or shape; cells whose results differ in shape.
            TraceError: as for cells.
        """
        return record_map(
            self, cells, kind, children, inputs, state, levels, as_flag(distinct, "map(distinct)"), examples, kinds
        )

    @overload
    def call(self, f: Cell[R], *args: Any, **statics: Any) -> R: ...
    @overload
    def call(self, f: Callable[..., R], *args: Any, **statics: Any) -> R: ...
    def call(self, f: Cell[Any] | Callable[..., Any], *args: Any, **statics: Any) -> Any:
        """Call a cell or a vpps function in this graph; needed if no argument shows the graph."""
        if not statics and type(f) is Cell:
            record = self.recorders.get(f)
            if record is not None:
                result = record(self, args)
                if result is not None:
                    return result
        check_callable(f, "call")
        return recorded(self, f, *args, **statics)

    @contextmanager
    def example(self, number: int) -> Iterator[None]:
        """Assign vertices recorded in this context to example `number` of the whole mini-batch:

            for k, tree in enumerate(trees):
                with graph.example(k):
                    losses.append(loss(tree))

        Dropout masks depend on that number and the position within the example. So an example gets the same masks in
        any process and with any other examples. Outside examples, masks depend on the position in this graph, and the
        shard. Record shared vertices outside examples, or under a separate number. Rows with known examples keep them.

        Raises:
            GraphError: no int from 0 to 2^31 - 1, or another thread is recording an example in the graph.
        """
        k = as_count(number, "example", GraphError, least=0, most=MOST)
        outer, thread = self._thread, get_ident()
        if outer not in (None, thread):
            raise GraphError(f"example({k}): another thread records an example in {self.describe()}; {APART}")
        self._thread = thread
        place, first = len(self.examples), self.n_calls
        self.examples.append((first, None, k))
        try:
            yield
        finally:
            self._thread = outer
            self.examples[place] = first, self.n_calls - first, k

    # ---- recording

    def _where(self, what: str) -> str:
        return f"{shown(what)}, call {self.n_calls}"

    def apply_again(self, op: str, operands: Sequence[Any]) -> Expression:
        """Record a bare op. This is fast if an earlier op had the same operands except for values (Recorder)."""
        key, args = _kind_of_op(op, operands)
        record = self.recorders.get(key)
        result: Expression | None = None if record is None else record(self, args)
        if result is None:
            recorder_of(operands, op)  # raises an error if an expression belongs to another graph
            result = self.apply(op, operands, {}, key)
        return result

    def apply(self, op: str, operands: Sequence[Any], attrs: dict[str, Any], kind: Any = None) -> Expression:
        """Record a bare op: a vertex of a one-op cell (Recorder). `kind`: key for similar calls in `recorders`."""
        if op in CONSTANT_OPS:
            # A constant may differ in every call (1 / number of tokens); passed as data, all values share one program.
            same, first = CONSTANT_OPS[op]
            constant = self._constant(attrs["value"], op in _NUMBERED)
            return self.apply(same, [constant, *operands] if first else [*operands, constant], {})
        if op == "concat" and len(operands) > WIDE and type(operands[0]) is Expression:
            operands = self._pieces(operands)
        key: list[Any] = [op]
        refs: list[int] = []
        ints: list[int] = []
        model: Any = None
        n_floats = len(operands) - OPS[op].indices
        for i, x in enumerate(operands):
            if i >= n_floats:
                row = as_index(x)
                if row is None:
                    many = isinstance(x, list | tuple) or getattr(x, "ndim", 0) > 0
                    if op == "cross_entropy" and isinstance(x, Expression):
                        raise DtypeError(
                            f"{self._where(op)}: expected an int, got {x!r}; for probabilities as targets write "
                            "-vpps.dot(targets, vpps.log_softmax(logits))"
                        )
                    remedy = "; several go with rows: graph.rows(array) has one for each" if many else ""
                    raise DtypeError(f"{self._where(op)}: expected an int, got {type(x).__name__} {x!r}{remedy}")
                ints.append(row)
            elif type(x) is Expression:
                refs.append(x.ref)
                key.append(x.shape)
            elif type(x) is Rows:
                return apply_to_rows(self, op, operands, attrs)  # type: ignore[no-any-return]
            else:
                if op == "lookup":
                    check_table(x, self._where(op))
                elif i or op not in PRODUCTS:  # products start with a matrix
                    check_operand(x, op, self._where(op))
                key.append(x)
                model = x.model
        program = self.bare_program(tuple(key), model, op, operands[:n_floats], attrs)
        result: Expression = self._record(program, refs, ints, [], kind)
        return result

    def bare_program(
        self, key: tuple[Any, ...], model: Any, op: str, floats: Sequence[Any], attrs: dict[str, Any]
    ) -> TracedCell:
        """Return a bare op's program, traced if new. If programs differ only in constants, only the latest is kept.

        Args:
            key: the op, and the kinds of its operands.
        """
        programs: Recent = _bare_programs if model is None else model.bare_programs
        slots: dict[float, int] = {}
        if attrs and op != "input":  # the key of an input includes its attributes
            pattern = opened(attrs, slots)
            key = exact_key(attrs) if pattern is attrs else tuple(pattern.items()), *key
        program: TracedCell | None = programs.get(key)
        if program is None:
            program = programs.keep(key, shared(self._bare_program(op, floats, attrs), op))
        elif slots and program.constants != (constants := tuple(slots)):
            assert program.pattern is not None
            program = programs.replace(key, program, program.pattern.closed(constants))
        return program

    def _pieces(self, operands: Sequence[Any]) -> Sequence[Any]:
        """Join many operands of one shape into pieces for `concat`; a piece's program fits any number of operands."""
        if len({(type(x), getattr(x, "shape", None)) for x in operands}) > 1:
            return operands
        while len(operands) > WIDE:
            pieces, operands = [operands[k : k + WIDE] for k in range(0, len(operands), WIDE)], []
            for piece in pieces:
                if len(piece) > 1:
                    piece = [self.apply("concat", piece, {})]
                    self.examples.append((self.n_calls - 1, 1, UNNUMBERED))
                operands += piece
        return operands

    def _constant(self, value: float, numbered: bool) -> Expression:
        """Return a scalar input that all calls with the same value share; `numbered`: see `_NUMBERED`."""
        word = float_word(value)  # the float's bits: 0.0 and -0.0 are equal but have different bits
        ref = self._constants.get((word, numbered))
        if ref is None:
            single = np.array((word,), np.uint32).view(np.float32)
            made = self._input(single, (), False)
            if numbered:
                ref = self._shared(made)
            else:
                ref = made.ref
                self.examples.append((self.n_calls - 1, 1, UNNUMBERED))
            self._constants[word, numbered] = ref
        return Expression(self, ref, ())

    def _shared(self, made: Expression) -> int:
        """Return the latest vertex's value id. The vertex belongs to no example, because all examples share it."""
        if self.examples:
            self.examples.append((self.n_calls - 1, 1, NONE))
        return made.ref

    def _bare_program(self, op: str, floats: Sequence[Any], attrs: dict[str, Any]) -> TracedCell:
        """Trace a one-op cell; error messages name the call."""
        parameters = [x for x in floats if isinstance(x, Parameter)]
        name = f"{op}({', '.join(p.name for p in parameters)})" if parameters else op
        if not any(isinstance(x, Lookup) for x in floats):
            result_shape(op, [x.shape for x in floats], attrs, self._where(op))
        kinds = [Vector(x.shape) for x in floats if isinstance(x, Expression)]

        def function(*arguments: Any) -> Any:
            given = iter(arguments)
            operands = [x if isinstance(x, Parameter) else next(given) for x in floats]
            return recorder_of([], op).apply(op, [*operands, *given], attrs)

        return trace(name, function, (*kinds, *[Int()] * OPS[op].indices), {})

    def call_cell(self, cell: Cell[Any], args: Sequence[Any], statics: dict[str, Any]) -> Any:
        """Record a call of a cell as one vertex; called by `Cell.__call__`."""
        signature: list[Any] = []
        refs: list[int] = []
        ints: list[int] = []
        lists: list[list[int]] = []
        for x in args:
            if type(x) is Expression:
                signature.append(x.shape)
                refs.append(x.ref)
            elif isinstance(x, list | tuple):
                shape = self._element_shape(cell, x)
                if shape is _OF_ROWS:
                    return call_on_rows(self, cell, args, statics)
                signature.append((list, shape))
                lists.append([e.ref for e in x])
            else:
                value = as_index(x)
                if value is None:
                    if has_rows(args):
                        return call_on_rows(self, cell, args, statics)
                    self._refuse_argument(cell, x)
                else:
                    signature.append(int)
                    ints.append(value)
        program = cell.program(tuple(signature), statics)
        return self._record(program, refs, ints, lists, None if statics else cell)

    def reduce(self, cell: Cell[Any], items: list[Any]) -> Expression | None:
        """Record a call of a cell on one list of expressions with the same shape. Returns None if shapes differ, or if
        no such call was traced before. Goes over the list once, because it often holds all vertices' losses."""
        result: Expression | None
        record = self.recorders.get(cell)
        if record is not None:
            result = record(self, (items,))
            return result
        program = cell.traced(((list, items[0].shape),))
        if program is None:
            return None
        block = self.blocks.get(program)
        if block is None:
            block = Block(program, self._tape, program)
        result = block.record(self, (items,))
        if result is not None:
            self.blocks[program] = block
            self.recorders[cell] = block.record
        return result

    def _element_shape(self, cell: Cell[Any], items: Sequence[Any]) -> Shape | None:
        where = self._where(f"cell {cell.name!r}")
        for e in items:
            if type(e) is Rows:
                return _OF_ROWS
            if type(e) is not Expression:
                raise DtypeError(
                    f"{where}: a list argument holds {e!r}; it may hold expressions only; bring data in with "
                    "graph.input(array)"
                )
            if e.shape != items[0].shape:
                raise ShapeError(f"{where}: the elements of a list argument have shapes {items[0].shape} and {e.shape}")
        return items[0].shape if items else None

    def _refuse_argument(self, cell: Cell[Any], x: Any) -> None:
        where = self._where(f"cell {cell.name!r}")
        if isinstance(x, Parameter):
            raise DtypeError(f"{where}: {x!r} is passed as an argument; a cell closes over its parameters instead")
        remedy = "pass values shared by all vertices as keyword-only arguments, and data with graph.input(array)"
        if "int" in str(getattr(x, "dtype", "")):  # NumPy and PyTorch dtypes
            remedy = "a vertex for each int of an array is recorded by graph.map(cell, inputs={name: array})"
        raise DtypeError(
            f"{where}: arguments are expressions, ints or lists of expressions, not {type(x).__name__}; {remedy}"
        )

    def _record(
        self, cell: TracedCell, refs: list[int], ints: list[int], lists: list[list[int]], kind: Any = None
    ) -> Any:
        """Append a vertex; return its output expression, or a tuple of outputs. On an error, nothing is appended."""
        if ints:
            for value, limit in zip(ints, cell.int_limits, strict=True):
                if limit is None:
                    if not -(2**31) <= value < 2**31:
                        raise IndexRangeError(f"{cell.name}, call {self.n_calls}: {value} is no 32-bit int")
                elif not 0 <= value < limit[0]:
                    check_index(value, limit[0], f"{cell.name}, call {self.n_calls}", limit[1])
        if lists:
            lengths: dict[int, int] = {}
            for items, domain in zip(lists, cell.lists, strict=True):
                if lengths.setdefault(domain, len(items)) != len(items):
                    raise ShapeError(
                        f"cell {cell.name!r}, call {self.n_calls}: lists that the cell maps together have lengths "
                        f"{lengths[domain]} and {len(items)}"
                    )
        block = self.block_of(cell)
        result = block.append(self, refs, ints, lists)
        if kind is not None:
            self.recorders[kind] = block.record
        return result

    def block_of(self, cell: TracedCell) -> Block:
        """Return the block for vertices of a program, creating it if needed."""
        pattern = cell.pattern or cell
        while True:
            block = self.blocks.get(pattern)
            if block is None:  # setdefault, because another thread may also be recording
                block = self.blocks.setdefault(pattern, Block(cell, self._tape, pattern))
            if block.cell is cell:
                return block
            pattern = pattern.another

    def record_values(self, levels: NDArray[np.int64]) -> int:
        """Make values whose vertices have these levels; return the first id. `record_chunk` records the vertices."""
        first = len(self._tape.levels)
        extend(self._tape.levels, levels)
        return first

    def make_vertices(self, form: Any, kind: Any, children: Any, levels: Any, columns: Any, shapes: Any) -> Any:
        """Make the values of a map's vertices and the arrays of its chunks in compiled code. Returns None if there is
        no compiled code or the map is unusual; see `vpps.record.packed` and native/map.h."""
        return self._tape.map(form, kind, children, levels, columns, shapes, self._zeros, self.zeros_of)

    def record_chunk(self, cell: TracedCell, chunk: Chunk) -> None:
        """Append vertices in bulk; recording indices continue from one chunk to the next."""
        block = self.block_of(cell)
        block.bulk.append((len(block.rows) // block.width, chunk))
        self._tape.n_calls += len(chunk)

    def note_examples(self, n: int, examples: ExampleNumbers) -> None:
        """Set the examples that the latest n vertices belong to."""
        self.examples.append((self.n_calls - n, n, examples))

    def level_of(self, value: int) -> int:
        """Return the level of the vertex that produces a value."""
        return self._tape.levels[value]

    def levels_of(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the levels of the vertices that produce some values."""
        levels: Any = self._tape.levels
        if type(levels) is list:
            return np.array([levels[value] for value in values.tolist()], np.int64)
        # The view must not outlive this call: the array cannot grow while a view exists.
        found: NDArray[np.int64] = np.frombuffer(levels, np.int64)[values]
        return found

    # ---- inspection

    def check_owns(self, expression: Any, what: str, given: str = "the one given") -> Any:
        """Return the expression or rows if they belong to this graph; otherwise raise GraphError."""
        if not isinstance(expression, _VALUES):
            raise GraphError(f"{what}: expected an expression, got {expression!r}")
        if expression.owner is not self:
            raise GraphError(
                f"{what}: {expression!r} belongs to another graph than {given} ({self.describe()}); "
                "is it left over from an earlier batch?"
            )
        return expression


def _kind_of_op(op: str, operands: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """Return a key for ops that share a record function (None if it is hard to find), and the operands that differ
    between vertices. Fast for expressions, with or without one parameter."""
    for x in operands:
        kind = type(x)
        if kind is not Expression and kind is not int:
            break
    else:
        return op, operands
    if len(operands) == 2:
        a, b = operands
        if type(a) is Parameter and type(b) is Expression:
            return (op, a), (b,)
        if type(b) is Parameter and type(a) is Expression:
            return (op, None, b), (a,)
    if any(type(x) not in (Expression, int, Parameter) for x in operands):
        return None, ()
    key = (op, *(x if type(x) is Parameter else None for x in operands))
    return key, [x for x in operands if type(x) is not Parameter]
