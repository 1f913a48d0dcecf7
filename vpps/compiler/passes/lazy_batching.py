"""Splits a recurrent cell, so that only its recurrence runs level by level (Cavs, section 3.4, proposition 2).

    eager   operators that read no gathered value of the recurrence: all vertices at once, before the first level
    level   operators that depend on a gathered value, and that a scattered value depends on: level by level
    lazy    operators that no scattered value depends on (outputs, losses): all vertices at once, after the last level

Backward runs in the opposite order. Each part is a separate cell, with a vertex for each vertex of the whole cell. A
value that crosses from one part to another is an argument of the second. Weight gradients are lazy anyway: they run
once, over all rows, after backward.

The eager part could run completely before the first level, but the recurrence would have to wait, and the first levels
need only some of its rows. The other rows are streamed: they run in chunks, long enough for long instructions, while
virtual processors wait for each other (section 4.3). A chunk for levels from l on is executed between the signal and
the wait of the barrier that ends level l - 2, so it is complete for everyone after the barrier that ends level l - 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from vpps.compiler.prepare import OUTSIDE, VIEWS, execution_order, root
from vpps.ops import OPS, Form
from vpps.record.trace import ArgKind, Int, List, Node, TracedCell, Vector

TRANSPARENT = (*VIEWS, Form.CONCAT)


class Batching(IntEnum):
    """Order in which the vertices of a part run: all at once before, level by level, or all at once after."""

    EAGER = 0
    LEVEL = 1
    LAZY = 2


STAGES = len(Batching)  # stages of a split cell for each stage of the whole cell

CHUNK_ROWS = 128  # fewest rows of a streamed chunk; enough for products to run at full speed on every target


@dataclass(frozen=True, slots=True)
class Crossing:
    """A value that one part computes and another reads.

    Attributes:
        batching: batching of the part that computes it.
        output: number of the output of that part.
        alone: True if nothing else reads it.
    """

    batching: Batching
    output: int
    alone: bool


@dataclass(frozen=True, slots=True)
class CellPart:
    """A part of a cell.

    Attributes:
        cell: program of the part; nodes have the same numbers as in the whole cell.
        vectors, ints, lists: for each kind, the numbers of the whole cell's arguments that the part takes, in order.
        crossings: values of other parts; they are vector arguments that follow `vectors`.
        outputs: for each of the part's outputs, the number of the whole cell's output, or -1 if it only crosses.
    """

    batching: Batching
    cell: TracedCell
    vectors: tuple[int, ...]
    ints: tuple[int, ...]
    lists: tuple[int, ...]
    crossings: tuple[Crossing, ...]
    outputs: tuple[int, ...]

    @property
    def first_crossing(self) -> int:
        """Position of the first argument that comes from another part."""
        return len(self.cell.kinds) - len(self.crossings)


def split(cell: TracedCell, gathered: frozenset[int], scattered: frozenset[int]) -> tuple[CellPart, ...]:
    """Return the parts of a cell, in order; an empty tuple if there would be only one part.

    Args:
        gathered: positions of the arguments that are values of the recurrence.
        scattered: numbers of the outputs that vertices of the recurrence read.
    """
    phases = _phases(cell, gathered, scattered)
    if len(set(phases.values())) < 2:
        return ()
    # (number in the whole or -1, node)
    outputs: dict[Batching, list[tuple[int, int]]] = {phase: [] for phase in Batching}
    for k, node in enumerate(cell.outputs):
        # An output belongs to the part that computes it; if none does, to the level part (scattered) or the lazy part.
        passed_on = Batching.LEVEL if k in scattered else Batching.LAZY
        outputs[phases.get(root(cell.nodes, node), passed_on)].append((k, node))
    read: dict[Batching, list[int]] = {}  # nodes of earlier parts that a part reads
    for phase in reversed(Batching):
        reached = _reached(cell.nodes, phases, phase, (node for _, node in outputs[phase]))
        read[phase] = [i for i in reached if i in phases and phases[i] is not phase]
        for i in read[phase]:
            if i not in (node for _, node in outputs[phases[i]]):
                outputs[phases[i]].append((-1, i))
    readers = [i for nodes in read.values() for i in nodes]
    parts = []
    for phase in Batching:
        crossings = []
        for i in read[phase]:
            nodes = [node for _, node in outputs[phases[i]]]
            alone = readers.count(i) == 1 and i not in cell.outputs
            crossings.append(Crossing(phases[i], nodes.index(i), alone))
        if outputs[phase]:
            parts.append(_part(cell, phases, phase, outputs[phase], read[phase], tuple(crossings)))
    return tuple(parts)


def _phases(cell: TracedCell, gathered: frozenset[int], scattered: frozenset[int]) -> dict[int, Batching]:
    """Return the phase of each node that computes something."""
    nodes = cell.nodes
    order = execution_order(nodes)
    depends = [False] * len(nodes)  # the node depends on a gathered value
    for i in order:
        n = nodes[i]
        own = n.op.form is Form.ARGUMENT and n.attrs["position"] in gathered
        depends[i] = own or any(depends[j] for j in n.inputs)
    leads = [False] * len(nodes)  # a scattered value depends on the node
    used = [False] * len(nodes)
    for k, o in enumerate(cell.outputs):
        leads[o] |= k in scattered
        used[o] = True
    for i in reversed(order):
        for j in nodes[i].inputs:
            leads[j] |= leads[i]
            used[j] |= used[i]
    phases = {
        i: Batching.LAZY if not leads[i] else Batching.LEVEL if depends[i] else Batching.EAGER
        for i, n in enumerate(nodes)
        if used[i] and n.op.form not in (*OUTSIDE, *TRANSPARENT)  # others belong to no part
    }
    edges = [(j, i) for i in phases for j in _computed(nodes, phases, nodes[i].inputs)]
    # Both nodes are moved to the level part if one would read a value of a later part, or a row per list element.
    moved = True
    while moved:
        moved = False
        for j, i in edges:
            if phases[j] > phases[i] or (nodes[j].domain and phases[j] is not phases[i]):
                phases[j] = phases[i] = Batching.LEVEL
                moved = True
    return phases


def _computed(nodes: Sequence[Node], phases: dict[int, Batching], wanted: Iterable[int]) -> list[int]:
    """Return the computing nodes among the given ones, looking through slices and concatenations."""
    found = []
    for i in wanted:
        if i in phases:
            found.append(i)
        elif nodes[i].op.form in TRANSPARENT:
            found.extend(_computed(nodes, phases, nodes[i].inputs))
    return found


def _reached(nodes: Sequence[Node], phases: dict[int, Batching], phase: Batching, wanted: Iterable[int]) -> list[int]:
    """Return the nodes that a part needs to compute some nodes, up to and including nodes of other parts."""
    found: set[int] = set()
    todo = list(wanted)
    while todo:
        i = todo.pop()
        if i not in found:
            found.add(i)
            if phases.get(i, phase) is phase:
                todo.extend(nodes[i].inputs)
    return sorted(found)


def _part(
    whole: TracedCell,
    phases: dict[int, Batching],
    phase: Batching,
    outputs: Sequence[tuple[int, int]],
    read: Sequence[int],
    crossings: tuple[Crossing, ...],
) -> CellPart:
    """Make the cell of a part: nodes keep their numbers, and nodes of other parts that it reads become arguments."""
    reached = _reached(whole.nodes, phases, phase, (node for _, node in outputs))
    nodes = [Node(OPS["zeros"], (), {"shape": n.shape}, n.shape) for n in whole.nodes]  # placeholders for other parts
    taken = {p: i for p, i in enumerate(whole.arguments) if i in reached}
    position = {p: new for new, p in enumerate(taken)}
    kinds: list[ArgKind] = [whole.kinds[p] for p in taken]
    domains = sorted({whole.nodes[i].domain for i in taken.values()} - {0})
    for i in reached:
        node = whole.nodes[i]
        attrs = node.attrs
        if node.op.form in (Form.ARGUMENT, Form.INDEX) and "position" in attrs:
            attrs = attrs | {"position": position[attrs["position"]]}
        nodes[i] = replace(node, attrs=attrs, domain=domains.index(node.domain) + 1 if node.domain else 0)
    for i in read:
        nodes[i] = Node(OPS["argument"], (), {"position": len(kinds)}, nodes[i].shape)
        kinds.append(Vector(nodes[i].shape))
    cell = TracedCell(whole.name, tuple(kinds))
    cell.nodes = nodes
    cell.arguments = [*taken.values(), *read]
    cell.outputs = tuple(node for _, node in outputs)
    cell.single = len(outputs) == 1
    cell.n_domains = len(domains)
    cell.list_domains = {position[p]: nodes[i].domain for p, i in taken.items() if isinstance(whole.kinds[p], List)}
    cell.lists = tuple(cell.list_domains.values())
    cell.index_limits = {position[p]: limit for p, limit in whole.index_limits.items() if p in taken}
    cell.int_limits = tuple(cell.index_limits.get(p) for p, k in enumerate(kinds) if isinstance(k, Int))

    def of_kind(kind: type[ArgKind]) -> tuple[int, ...]:
        return tuple(whole.place(p) for p in taken if isinstance(whole.kinds[p], kind))

    numbers = tuple(k for k, _ in outputs)
    return CellPart(phase, cell, of_kind(Vector), of_kind(Int), of_kind(List), crossings, numbers)
