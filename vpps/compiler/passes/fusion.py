"""Elementwise fusion: the elementwise operators between the products of a cell become one instruction, a tail.

The pass works on instructions, after lowering, so that backward needs no separate rules. An instruction over stacked
units (the gates of one product) is split by parts, so that a sigmoid over three gates can be fused with the readers of
each gate. Instructions on the same rows and units, with the same owners, go into one tail, unless another instruction
must run between them. A value that only the tail reads is never stored and has no slab; a value that backward reads is
stored. A tail calls the same device code in the same order, so results are bit-identical.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from vpps.compiler.instr import (
    Expand,
    IndexList,
    Instr,
    Listed,
    Offsets,
    ParameterGradient,
    TableGradient,
    TailView,
    View,
)
from vpps.ops import OPS, Form
from vpps.record.trace import Constant
from vpps.script.instructions import Role
from vpps.script.tails import NONE, Load, Step, Tail, ViewUse
from vpps.values import float_word

if TYPE_CHECKING:
    from vpps.compiler.lower import LoweredCell

MOST = 48  # instructions in a tail: a longer tail's values would not fit into registers

# All instructions of a tail share these: domain, units, flags ROWS and ALONE.
Kind = tuple[int, int, bool, bool]


class DeviceCode(NamedTuple):
    """Device code of an elementwise instruction.

    Attributes:
        function: function of templates/ops/elementwise.cuh.
        reads: for each operand, True if the function reads it.
        has_constant: True if the function reads the field `value`.
    """

    function: str
    reads: tuple[bool, ...]
    has_constant: bool


def _codes() -> dict[str, DeviceCode]:
    """Return the device code of every elementwise instruction by its name."""
    found = {}
    for op in OPS.values():
        if op.form is not Form.MAP:
            continue
        assert op.arity is not None
        constant = "value" in op.attrs
        found[op.name] = DeviceCode(f"{op.device}::forward", (True,) * op.arity, constant)
        for k in range(op.arity if op.differentiable else 0):
            reads = op.reads[k] if op.reads else "aby"
            function = f"{op.device}::backward{k if op.arity > 1 else ''}"
            operands = tuple(letter in reads for letter in "ab"[: op.arity] + "y")
            found[f"{op.name}.grad{k}"] = DeviceCode(function, (*operands, True), constant)
    return found


CODES = _codes()
_ADD, _COPY = "Add::forward", "Copy::forward"
_OPERANDS = "abcd"


@dataclass(slots=True, eq=False)
class Piece:
    """An instruction, or the part of an instruction that computes some of its units.

    Attributes:
        instr: instruction with the views of the part.
        of: position of the whole instruction in its list.
        whole: the whole instruction.
        kind: kind of the pieces that it may be fused with; None: it is never fused.
        stage: see `_assign_stages`.
    """

    instr: Instr
    of: int
    whole: Instr
    kind: Kind | None
    stage: int = 0


def fuse(cell: LoweredCell) -> None:
    """Fuse a lowered cell's forward and backward into tails, and drop the slabs that become unused."""
    forward, backward = _runs(cell.forward), _runs(cell.backward)
    live = _Live(cell.read_at_the_end())
    # Work from the end to the beginning, so that the later readers of every written view are known.
    cell.backward = _emit(backward, live)
    cell.forward = _emit(forward, live)
    drop_unused_slabs(cell)


# ---- instructions that run together


def _pieces(instrs: Sequence[Instr]) -> list[Piece]:
    """Return the instructions as pieces; those over stacked units are split by parts."""
    found = []
    for i, instr in enumerate(instrs):
        if instr.name not in CODES and instr.name not in ("zero", "gather_sum"):
            found.append(Piece(instr, i, instr, None))
            continue
        width = instr.width // instr.parts
        for k in range(instr.parts):
            part = _part(instr, k * width, width) if instr.parts > 1 else instr
            found.append(Piece(part, i, instr, (instr.domain, width, instr.rows, instr.alone)))
    return found


def _part(instr: Instr, offset: int, width: int) -> Instr:
    """Return an elementwise instruction for `width` of its units, from `offset` on."""

    def of(view: View) -> View:
        return view.part(offset, width) if view.width == instr.width else view

    operands = {name: of(view) for name, view in instr.operands.items()}
    of_others = instr.name == "gather_sum" or any(v.slab < 0 and v.rows is not None for v in operands.values())
    values = dict(instr.values)
    if instr.name == "gather_sum":
        values["shift"] += offset
    return replace(
        instr,
        width=width,
        parts=1,
        operands=operands,
        values=values,
        gathers=tuple(map(of, instr.gathers)),
        reads_parts=of_others,
    )


def _runs(instrs: Sequence[Instr]) -> list[list[Piece]]:
    """Return the runs: pieces that run together, ordered so that each run depends only on earlier runs."""
    pieces = _pieces(instrs)
    _assign_stages(pieces)
    runs: dict[Any, list[Piece]] = {}
    for piece in pieces:
        # An instruction that cannot be fused is a separate run.
        runs.setdefault((piece.stage, piece.kind) if piece.kind is not None else piece, []).append(piece)
    ordered = sorted(runs.values(), key=lambda run: run[0].stage)
    return [run[i : i + MOST] for run in ordered for i in range(0, len(run), MOST)]


def _assign_stages(pieces: Sequence[Piece]) -> None:
    """Number the stages: a piece comes one stage after each piece that it depends on and cannot be fused with.

    Pieces of one kind and stage form a tail. No other piece must run between two of them: its stage would be later than
    that of the first and earlier than that of the second. Then each piece is moved to the latest stage that a later
    piece of its kind allows, so that values are computed in the tail that reads them.
    """
    after: list[list[tuple[Piece, int]]] = [[] for _ in pieces]
    touched: dict[int, list[tuple[int, bool, View]]] = {}
    for i, piece in enumerate(pieces):
        distances: dict[int, int] = {}
        mine = [(role in (Role.WRITE, Role.ADD), view) for role, view in piece.instr.views() if view.slab >= 0]
        for writes, view in mine:
            for j, wrote, other in touched.get(view.slab, ()):
                if (writes or wrote) and _overlap(view, other):
                    same = piece.kind is not None and piece.kind == pieces[j].kind
                    aligned = view == other and view not in (*piece.instr.gathers, *pieces[j].instr.gathers)
                    distances[j] = max(distances.get(j, 0), 0 if same and aligned else 1)
        for writes, view in mine:
            touched.setdefault(view.slab, []).append((i, writes, view))
        for j, distance in distances.items():
            after[j].append((piece, distance))
            piece.stage = max(piece.stage, pieces[j].stage + distance)
    for piece, successors in zip(reversed(pieces), reversed(after), strict=True):
        if piece.kind is not None and successors:
            latest = min(s.stage - distance for s, distance in successors)
            if any(s.kind == piece.kind and s.stage == latest for s, distance in successors if not distance):
                piece.stage = latest


def _overlap(a: View, b: View) -> bool:
    return a.offset < b.offset + b.width and b.offset < a.offset + a.width


# ---- live views


class _Live:
    """The parts of slabs that later instructions read."""

    def __init__(self, views: Iterable[View]) -> None:
        self._of_slab: dict[int, list[View]] = {}
        self.add(views)

    def add(self, views: Iterable[View]) -> None:
        """Add views that are read."""
        for view in views:
            if view.slab >= 0:
                self._of_slab.setdefault(view.slab, []).append(view)

    def __contains__(self, view: View) -> bool:
        return any(_overlap(view, other) for other in self._of_slab.get(view.slab, ()))


def _emit(runs: Sequence[list[Piece]], live: _Live) -> list[Instr]:
    """Return the instructions of runs. `live` has the views that are read later; views that the runs read are added."""
    found: list[Instr] = []
    for run in reversed(runs):
        # Fuse several instructions, unless all are sums of gradients: a tail takes time to compile.
        if len({p.of for p in run}) > 1 and any(p.instr.name in CODES for p in run):
            made = _Program(run).instructions(live)
        else:
            made = _as_they_were(run)[::-1]
        for instr in made:
            live.add(view for role, view in instr.views() if role is not Role.WRITE or instr.accumulate)
        found.extend(made)
    return found[::-1]


def _as_they_were(run: Sequence[Piece]) -> list[Instr]:
    """Return a run's instructions unfused: whole instructions if the run has all of their pieces, else the pieces."""
    found: list[Instr] = []
    for _, of_one in groupby(run, key=lambda piece: piece.of):
        pieces = list(of_one)
        whole = pieces[0].whole
        found += [whole] if len(pieces) == whole.parts else [piece.instr for piece in pieces]
    return found


# ---- the program of a tail


@dataclass(frozen=True, slots=True, eq=False)
class _Value:
    """A value in a tail; equal values are the same object.

    Attributes:
        what: a View to load, Listed rows to sum, or the name of a function to call.
        inputs: inputs of the function.
        constant: constant of the function.
        mean: True to divide a sum by its number of terms.
    """

    what: Any
    inputs: tuple[_Value | None, ...] = ()
    constant: Constant | float | None = None
    mean: bool = False


class _Program:
    """Fuses a run of pieces into one instruction."""

    def __init__(self, run: Sequence[Piece]) -> None:
        self.run = run
        self.known: dict[View, _Value | None] = {}  # view -> its current value; None: zero
        self.written: dict[View, None] = {}
        self._values: dict[Any, _Value] = {}
        for piece in run:
            self._execute(piece.instr)
            self.written[piece.instr.operands["dst"]] = None

    def _execute(self, instr: Instr) -> None:
        dst = instr.operands["dst"]
        value: _Value | None
        if instr.name == "zero":
            value = None
        elif instr.name == "gather_sum":
            value = self._value(Listed(instr.values["offsets"], instr.values["shift"]), mean=instr.mean)
        else:
            code = CODES[instr.name]
            views = [instr.operands[name] for name in _OPERANDS[: len(code.reads)]]
            inputs = tuple(self._read(v) if read else None for v, read in zip(views, code.reads, strict=True))
            constant = instr.values["value"] if code.has_constant else None
            value = inputs[0] if code.function == _COPY else self._value(code.function, inputs, constant)
        if instr.accumulate:
            value = self._value(_ADD, (self._read(dst), value))
        self.known[dst] = value

    def _read(self, view: View) -> _Value | None:
        if view not in self.known:
            self.known[view] = self._value(view)
        return self.known[view]

    def _value(
        self,
        what: View | Listed | str,
        inputs: tuple[_Value | None, ...] = (),
        constant: Constant | float | None = None,
        mean: bool = False,
    ) -> _Value:
        # Compare constants by their bits: 0.0 == -0.0.
        bits = constant if constant is None or isinstance(constant, Constant) else float_word(constant)
        key = (what, tuple(map(id, inputs)), bits, mean)
        return self._values.setdefault(key, _Value(what, inputs, constant, mean))

    def instructions(self, live: _Live) -> list[Instr]:
        """Return the tail, which stores the live views; an empty list if none is live."""
        stored = [view for view in self.written if view in live]
        if not stored:
            return []
        first = self.run[0].instr
        order = _in_order([self.known[view] for view in stored])
        sums = [v for v in order if isinstance(v.what, Listed)]
        loads = [v for v in order if isinstance(v.what, View)]
        calls = [v for v in order if isinstance(v.what, str)]
        constants = [v for v in calls if v.constant is not None]
        number = {v: i for i, v in enumerate([*sums, *loads, *calls])}
        n_sources = len(sums) + len(loads)
        place = {v: n_sources + i for i, v in enumerate(constants)}
        views: list[TailView] = [
            *((ViewUse.MEAN if v.mean else ViewUse.SUM, v.what) for v in sums),
            *((ViewUse.READ, v.what) for v in loads),
            *((ViewUse.CONSTANT, v.constant) for v in constants if v.constant is not None),
            *((ViewUse.WRITE, view) for view in stored),
        ]

        def numbers(values: Sequence[_Value | None]) -> tuple[int, ...]:
            return tuple(NONE if v is None else number[v] for v in values)

        steps = tuple(Step(v.what, numbers(v.inputs), place.get(v, NONE)) for v in calls)
        tail = Tail(
            len(sums),
            tuple(_load(v.what, first) for v in loads),
            len(constants),
            steps,
            numbers([self.known[view] for view in stored]),
        )
        gathers = tuple(view for piece in self.run for view in piece.instr.gathers)
        made = replace(
            first,
            name="tail",
            node=self.run[-1].instr.node,
            operands={"views": views},
            values={"number": tail.number},
            accumulate=False,
            mean=False,
            gathers=gathers,
            tail=tail,
            merged=tuple({p.of: (p.whole.name, p.whole.node) for p in self.run}.values()),
            reads_parts=any(piece.instr.reads_parts for piece in self.run),
        )
        return [made]


def _in_order(values: Sequence[_Value | None]) -> list[_Value]:
    """Return values and all of their inputs, each once, in topological order."""
    found: dict[_Value, None] = {}

    def visit(value: _Value | None) -> None:
        if value is not None and value not in found:
            for v in value.inputs:
                visit(v)
            found[value] = None

    for value in values:
        visit(value)
    return list(found)


def _load(view: View, instr: Instr) -> Load:
    """Return the kind of load with which a tail that replaces an instruction reads a view."""
    if view.width == instr.width:
        return Load.LISTED_UNIT if view.may_be_listed(instr.domain) else Load.UNIT
    return Load.LISTED_ROW if view.may_be_listed(instr.domain) else Load.ROW


# ---- slabs


def drop_unused_slabs(cell: LoweredCell) -> None:
    """Remove the slabs that no instruction touches, and renumber the others."""
    instrs = [*cell.forward, *cell.backward, *(g.instr for g in cell.parameter_gradients)]
    used = {view.slab for instr in instrs for _, view in instr.views()}
    used |= {view.slab for view in cell.read_at_the_end()}
    kept = [i for i in range(len(cell.slabs)) if i in used]
    if len(kept) == len(cell.slabs):
        return
    numbers = {old: new for new, old in enumerate(kept)}
    cell.slabs = [cell.slabs[i] for i in kept]
    cell.slab_nodes = [cell.slab_nodes[i] for i in kept]
    cell.n_forward_slabs = sum(i < cell.n_forward_slabs for i in kept)
    for name in (
        "forward", "backward", "parameter_gradients", "table_gradients", "outputs", "arguments", "input_gradient",
    ):  # fmt: skip
        setattr(cell, name, _renumbered(getattr(cell, name), numbers))


def _renumbered(value: Any, numbers: Mapping[int, int]) -> Any:
    """Return any part of a lowered cell with its slabs renumbered, at any depth."""

    def of(inner: Any) -> Any:
        return _renumbered(inner, numbers)

    match value:
        case View(slab):
            return value._replace(slab=numbers[slab]) if slab >= 0 else value
        case IndexList(slab):
            return IndexList(numbers[slab])
        case Expand() | Offsets():
            return replace(value, of=of(value.of))
        case Listed(offsets, shift):
            return Listed(of(offsets), shift)
        case Instr(operands=operands, values=values, gathers=gathers):
            return replace(value, operands=of(operands), values=of(values), gathers=of(gathers))
        case ParameterGradient(instr=instr):
            return replace(value, instr=of(instr))
        case TableGradient(view=view):
            return replace(value, view=of(view))
        case dict():
            return {name: of(inner) for name, inner in value.items()}
        case Constant():
            return value
        case list():
            return [of(inner) for inner in value]
        case tuple():
            return tuple(map(of, value))
    return value
