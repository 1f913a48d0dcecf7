"""What batched cells copy: Table 2 of the ED-Batch paper, on its seven cells, and what vpps's own cells copy.

    python bench/cell_layout.py

One JSON object per line and cell, of a batch of 8 with vectors of 64, every gate declared by itself as in ED-Batch's
program. `memory_kernels` (gathers before a batch of primitives and scatters after it) and `kilobytes` that they copy:

- `declared`: every parameter by itself, symbols batch by batch, which is how DyNet allocates them;
- `pq_tree`: in the order of the PQ tree;
- `vpps`: instructions of the lowered cell, forward and backward, that copy and do not compute; `unfused` without
  fusion, `unfused_as_used` also without the pass `cell_layout`; `instructions` counts all of the three;
- `paper`: measured by ED-Batch's authors, `program` by running their program (kernels only).

Parameters count once here; in the paper once for each of the 8 vertices, which is why its kilobytes before are up to 8
times larger and those after are the same. `planning_ms` is how long batching is searched and memory ordered, the median
(Table 5 has 1.5 to 30 ms); `stacking_ms` what a handle does of that when it sees the cell for the first time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import harness

import vpps
from vpps.compiler.passes import Passes
from vpps.compiler.passes.cell_layout import Copies, study
from vpps.compiler.passes.horizontal import find_stacks
from vpps.compiler.passes.nodes import simplified
from vpps.placement.distribution import Distribution
from vpps.planner.planner import Planner
from vpps.record.trace import TracedCell, Vector, trace

PANEL = 32  # rows of a packed panel: those of most CPUs
PASSES = {
    "vpps": Passes(),
    "unfused": Passes(fusion=False),
    "unfused_as_used": Passes(fusion=False, cell_layout=False),
}

E = vpps.Expression
Make = Callable[[vpps.Model, int], tuple[Callable[..., Any], list[tuple[int, ...]]]]


@dataclass(frozen=True)
class Cell:
    """A cell of ED-Batch's Table 2.

    Attributes:
        make: its function and the shapes of its arguments, from a model and a size.
        paper: memory kernels before and after, kilobytes before and after.
        program: memory kernels before and after, of ED-Batch's program where it was run.
    """

    make: Make
    paper: tuple[int, int, float, float]
    program: tuple[int, int]


def _matrices(model: vpps.Model, size: int, names: str, columns: int = 1) -> Iterator[vpps.Parameter]:
    """A parameter for each name: a vector for a small letter, else a matrix of so many times `size` columns."""
    for name in names.split():
        yield model.parameter(name, (size, columns * size) if name[0].isupper() else (size,))


def gru(model: vpps.Model, size: int) -> tuple[Callable[..., Any], list[tuple[int, ...]]]:
    """The reset gate acts on the state before it is multiplied."""
    br, Ur, Wr, bz, Uz, Wz, bc, Uc, Wc = _matrices(model, size, "br Ur Wr bz Uz Wz bc Uc Wc")

    def cell(x: E, h: E) -> E:
        r = vpps.sigmoid(Ur @ h + Wr @ x + br)
        z = vpps.sigmoid(Uz @ h + Wz @ x + bz)
        c = vpps.tanh(Uc @ (r * h) + Wc @ x + bc)
        return z * h + (1 - z) * c

    return cell, [(size,), (size,)]


def lstm(model: vpps.Model, size: int) -> tuple[Callable[..., Any], list[tuple[int, ...]]]:
    """With forget gates; declared gate by gate in the order f, c, i, o."""
    U = list(_matrices(model, size, "Uf Uc Ui Uo"))
    W = list(_matrices(model, size, "Wf Wc Wi Wo"))
    b = list(_matrices(model, size, "bf bc bi bo"))

    def cell(x: E, h: E, c: E) -> tuple[E, E]:
        f, u, i, o = (b[k] + U[k] @ x + W[k] @ h for k in range(4))
        c = vpps.sigmoid(i) * vpps.tanh(u) + vpps.sigmoid(f) * c
        return vpps.sigmoid(o) * vpps.tanh(c), c

    return cell, [(size,)] * 3


def mv(model: vpps.Model, size: int) -> tuple[Callable[..., Any], list[tuple[int, ...]]]:
    """A node of an MV-RNN: a vector and a matrix from those of two children; without the matrix's bias."""
    W, M = _matrices(model, size, "W M", columns=2)
    b = model.parameter("b", (size,))

    def cell(left: E, right: E, a: E, c: E) -> tuple[E, E]:
        return vpps.tanh(W @ vpps.concat([left @ c, right @ a]) + b), M @ vpps.concat([left, right])

    return cell, [(size, size), (size, size), (size,), (size,)]


def tree_gru(children: int) -> Make:
    """ED-Batch's: a GRU step of each child by itself, with weights of its own; the mean of what they give."""

    def make(model: vpps.Model, size: int) -> tuple[Callable[..., Any], list[tuple[int, ...]]]:
        weights = [list(_matrices(model, size, f"Ur{k} br{k} Uz{k} bz{k} Uc{k} bc{k}")) for k in range(children)]

        def cell(*hs: E) -> E:
            found = []
            for h, (Ur, br, Uz, bz, Uc, bc) in zip(hs, weights, strict=True):
                r, z = vpps.sigmoid(Ur @ h + br), vpps.sigmoid(Uz @ h + bz)
                c = vpps.tanh(Uc @ (r * h) + bc)
                found.append(z * h + (1 - z) * c)
            return vpps.sum(found) * (1 / children)

        return cell, [(size,)] * children

    return make


def tree_lstm_inner(model: vpps.Model, size: int) -> tuple[Callable[..., Any], list[tuple[int, ...]]]:
    """Two children; a forget gate sees one of them."""
    Ui, Uo, Uu = _matrices(model, size, "Ui Uo Uu", columns=2)
    F1, F2, bi, bo, bu, bf = _matrices(model, size, "F1 F2 bi bo bu bf")

    def cell(h1: E, c1: E, h2: E, c2: E) -> tuple[E, E]:
        e = vpps.concat([h1, h2])
        i, o, u = vpps.sigmoid(Ui @ e + bi), vpps.sigmoid(Uo @ e + bo), vpps.tanh(Uu @ e + bu)
        f1, f2 = vpps.sigmoid(F1 @ h1 + bf), vpps.sigmoid(F2 @ h2 + bf)
        c = f2 * c2 + i * u + f1 * c1
        return o * vpps.tanh(c), c

    return cell, [(size,)] * 4


def tree_lstm_leaf(model: vpps.Model, size: int) -> tuple[Callable[..., Any], list[tuple[int, ...]]]:
    """Of a word's vector."""
    Wi, Wo, Wu, bi, bo, bu = _matrices(model, size, "Wi Wo Wu bi bo bu")

    def cell(x: E) -> tuple[E, E]:
        i, o, u = vpps.sigmoid(Wi @ x + bi), vpps.sigmoid(Wo @ x + bo), vpps.tanh(Wu @ x + bu)
        c = i * u
        return o * vpps.tanh(c), c

    return cell, [(size,)]


CELLS = {
    "GRU": Cell(gru, (6, 2, 666.0, 14.0), (6, 2)),
    "LSTM": Cell(lstm, (4, 1, 1054.0, 16.0), (4, 2)),
    "MV": Cell(mv, (2, 2, 260.0, 260.0), (2, 2)),
    "Tree-GRU internal": Cell(tree_gru(2), (8, 2, 552.0, 16.0), (8, 2)),
    "Tree-GRU leaf": Cell(tree_gru(1), (4, 2, 268.0, 8.0), (4, 2)),
    "Tree-LSTM internal": Cell(tree_lstm_inner, (7, 3, 1064.0, 22.0), (7, 4)),
    "Tree-LSTM leaf": Cell(tree_lstm_leaf, (3, 1, 396.0, 6.0), (3, 1)),
}


def executed(cell: TracedCell, model: vpps.Model, rows: int, passes: Passes) -> tuple[Copies, int]:
    """What vpps's instructions of a cell copy in a step forward and one backward, and how many there are."""
    stacks = find_stacks([simplified(cell, passes)[0]], list(model), PANEL, layout=passes.cell_layout)
    distribution = Distribution(model, 2, PANEL, 0, train=True, stacks=stacks)
    lowered = Planner(distribution, "sinks-last", passes=passes).cells.encoded(cell).lowered
    instrs = [*lowered.forward, *lowered.backward]
    copies = [4 * rows * i.width for i in instrs if i.name == "copy"]
    return Copies(len(copies), sum(copies)), len(instrs)


def milliseconds(work: Callable[[], object], times: int) -> float:
    """Of the processor that something takes; the median. Nothing waits here, so a busy machine changes little."""
    return round(1e3 * statistics.median(harness.timed(work, times, time.process_time)), 2)


def figures(name: str, batch: int, size: int, times: int) -> dict[str, Any]:
    """All that is known of a cell."""
    made = CELLS[name]
    model = vpps.Model()
    function, shapes = made.make(model, size)
    simple = simplified(trace(name, function, tuple(Vector(shape) for shape in shapes), {}), Passes())[0]
    found = study(simple, batch, one_vector=False)
    assert found is not None
    ours, instructions = {}, {}
    for key, passes in PASSES.items():
        ours[key], instructions[key] = executed(simple, model, batch, passes)
    copies = {"declared": found.declared, "pq_tree": found.laid_out, **ours}
    kernels_before, kernels_after, before, after = made.paper
    kernels = {key: c.operations for key, c in copies.items()}
    kilobytes = {key: round(c.bytes / 1024, 2) for key, c in copies.items()}
    return {
        "memory_kernels": kernels | {"paper": [kernels_before, kernels_after], "program": list(made.program)},
        "kilobytes": kilobytes | {"paper": [before, after]},
        "instructions": instructions,
        "primitives": found.primitives,
        "batches": len(found.batching.batches),
        "policy": found.batching.policy,
        "planning_ms": milliseconds(lambda: study(simple, batch, one_vector=False), times),
        "stacking_ms": milliseconds(lambda: find_stacks([simple], list(model), PANEL), times),
    }


if __name__ == "__main__":
    parser = harness.parser(__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--times", type=int, default=11, help="of which the median is taken")
    options = parser.parse_args()
    for name in CELLS:
        found = figures(name, options.batch, options.size, options.times)
        case = f"cell={name} batch={options.batch} size={options.size}"
        harness.report("cell_layout", case, [found["memory_kernels"]["pq_tree"]], "memory kernels", **found)
