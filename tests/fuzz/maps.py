"""Random structures of random kinds: a map is bit-identical to single calls in the same order, and agrees with the
reference; with or without levels, with children in tables or lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

import vpps
from tests.comparison import contents_of
from tests.fuzz.cells import ROWS, Cell, Op, declarations, draw_ops
from tests.fuzz.graphs import DEFAULT, HEAD, Options, differing, draw_options, open_with
from tests.fuzz.oracle import Oracle, reference_of
from tests.fuzz.program import Finding, execute
from vpps.record import vertices
from vpps.reference import weights_of

ARITIES = (0, 1, 2)


class Vertex(NamedTuple):
    """One vertex; any ints are valid.

    Attributes:
        kind: number of the cell.
        children: earlier vertices, by distance; 0 means none: zeros are read.
        row: row of the table.
        own: number of the vector that it reads; several vertices can read the same vector.
    """

    kind: int
    children: tuple[int, ...]
    row: int
    own: int


class Kind(NamedTuple):
    """A kind of vertices: its inputs besides its children, and its computation."""

    row: bool
    own: bool
    ops: tuple[Op, ...]


@dataclass(frozen=True)
class Map:
    """A random map.

    Attributes:
        seed: seed for weights and inputs.
        width: index of the cells' width.
        kinds: kinds of vertices.
        states: number of result vectors per vertex.
        lists: True if children are lists; otherwise kind k has k children.
        vertices: the structure.
        wanted: vertices that the loss reads, as positions counted from the end; repetitions are allowed.
        distinct: True to compute equal rows once; then gradients may differ in bits.
        levels: True to pass levels.
        ops: True if the loss computes with the rows that it reads.
        deep: True if vectors given to odd vertices were computed.
        vps: virtual processors.
        paper: True for the published schedule.
        options: the rest of the configuration.
        packed: True if compiled code can record it: levels are given, arrays are as in a GraphSet, and the cells were
            mapped before.
    """

    seed: int
    width: int
    kinds: tuple[Kind, ...]
    states: int
    lists: bool
    vertices: tuple[Vertex, ...]
    wanted: tuple[int, ...]
    distinct: bool = False
    levels: bool = False
    ops: bool = False
    deep: bool = False
    vps: int = 1
    paper: bool = False
    options: Options = DEFAULT
    packed: bool = False

    def cells(self) -> list[Cell]:
        """Return a cell for each kind; there is at least one."""
        states, found = 1 + self.states % 2, []
        for k, (row, own, ops) in enumerate(self.kinds or (Kind(True, False, ()),)):
            vectors, lists = (0, states) if self.lists else (states * ARITIES[k % len(ARITIES)], 0)
            found.append(Cell(self.width, vectors, lists, row, own, ops, (1,) * (states - 1)))
        return found

    def source(self) -> list[str]:
        """Return lines that make `bulk` and `single`, each with its own graph and loss."""
        made, vertices = self.cells(), self.vertices or (Vertex(0, (), 0, 0),)
        n, w = len(vertices), made[0].w
        packed = self.packed
        kind = [v.kind % len(made) for v in vertices]
        rows = [v.row % ROWS for v in vertices]
        states, below = 1 + self.states % 2, []
        for place, v in enumerate(vertices):
            most = 3 if self.lists else ARITIES[kind[place] % len(ARITIES)]
            given = (v.children + (0, 0))[:most] if not self.lists else v.children[:most]
            numbers = [place - 1 - (c - 1) % place if c and place else -1 for c in given]
            below.append(numbers)
        levels: list[int] = []
        for children in below:
            levels.append(1 + max((levels[c] for c in children if c >= 0), default=-1))
        inputs = []
        inputs += ['"row": rows'] if any(c.row for c in made) else []
        inputs += ['"x": x'] if any(c.own for c in made) else []
        wanted = [n - 1 - i % n for i in self.wanted or (0,)]
        names = ", ".join(f"cell{k}" for k in range(len(made)))
        options = ", state=" + repr([(w,)] * states) if states > 1 else f", state={w}"
        options += f", levels=np.array({levels}{', np.int32' * packed})" if self.levels or packed else ""
        options += ", distinct=True" if self.distinct else ""
        if self.lists:
            offsets = [sum(len(b) for b in below[:k]) for k in range(n + 1)]
            dtype = "np.int32" if packed else "int"
            children = f"(np.array({offsets}, {dtype}), np.array({[c for b in below for c in b]}, {dtype}))"
        else:
            children = f"np.array({[(b + [-1, -1])[:2] for b in below]}{', np.int32' * packed})"
        lines = [
            f"rng, kind, rows = np.random.default_rng({self.seed}), np.array({kind}, np.int8), np.array({rows})",
            f"cells, below, data = [{names}], {below}, rng.normal(size=({n}, {w})).astype(np.float32)",
            "bulk, single = vpps.Graph(), vpps.Graph()",
            "def mapped(bulk):",
        ]
        if any(c.own for c in made):
            lines += ["    x = bulk.rows(data, grad=True)", *["    x = vpps.tanh(x)"] * self.deep]
            read = [v.own % n for v in vertices]
            lines += [f"    x = x[{read}]"] if read != list(range(n)) else []
        children = f", children={children}" if any(c.vectors or c.lists for c in made) else ""
        lines += [
            f"    return bulk.map(cells, kind=kind{children}, inputs={{{', '.join(inputs)}}}{options})",
            *["mapped(vpps.Graph())"] * packed,
            f"c = {'mapped(bulk)' if states > 1 else '(mapped(bulk),)'}",
            f"wanted, t = {wanted}, c[0][{wanted}]",
            *(["t = t * c[-1][wanted]", "t = vpps.tanh(t)"] if self.ops else []),
            "loss = vpps.sum([vpps.sum(vpps.sum(t) * vpps.mean(c[-1][wanted]))])",
        ]
        if any(-1 in b for b in below):
            lines.append(f"zero = [single.zeros({w})] * {states}")
        else:
            lines.append("zero = []")
        if any(c.own for c in made):
            lines += ["xs = [single.input(r, grad=True) for r in data]"]
            lines += ["xs = [vpps.tanh(e) for e in xs]"] * self.deep
            lines += [f"xs = [xs[k] for k in {read}]"]
        reads = [("rows[v], " if c.row else "") + ("xs[v], " if c.own else "") for c in made]
        lines.append("out = []")
        lines.append(f"for v in range({n}):")
        if self.lists:
            lines.append(f"    states = [[(out[k] if k >= 0 else zero)[s] for k in below[v]] for s in range({states})]")
        else:
            lines.append("    states = [e for k in below[v] for e in (out[k] if k >= 0 else zero)]")
        own = " or ".join(f"kind[v] == {k} and ({r})" for k, r in enumerate(reads) if r) or "()"
        lines.append(f"    out.append(single.call(cells[kind[v]], *states, *({own} or ())))")
        if states == 1:
            lines.append("    out[v] = [out[v]]")
        return [
            *lines,
            "t = [out[v][0] for v in wanted]",
            *(["t = [e * out[v][-1] for e, v in zip(t, wanted)]", "t = [vpps.tanh(e) for e in t]"] if self.ops else []),
            "expected = vpps.sum([vpps.sum(vpps.sum(t) * vpps.mean([out[v][-1] for v in wanted]))])",
        ]

    def program(self) -> list[str]:
        """Return lines that make both graphs."""
        cells = [line for k, cell in enumerate(self.cells()) for line in cell.source(f"cell{k}")]
        source = self.source()
        w = self.cells()[0].w
        anchor = f"loss, expected = (a + vpps.sum(g.lookup(E0_{w}, 1)) for a, g in ((loss, bulk), (expected, single)))"
        source.append(anchor)  # so that there is a parameter to train
        return [*HEAD, f"model = vpps.Model(seed={self.seed})", *declarations([*cells, *source]), *cells, *source]

    def check(self) -> None:
        """Raise Finding if the graphs differ."""
        lines = self.program()
        made = execute(lines)
        model, bulk, single = made["model"], made["bulk"], made["single"]
        arguments = {"vps": str(self.vps % 8 or 1), **self.options.named}
        if self.paper:
            arguments["schedule"] = '"paper"'
        step = [f"with vpps.Handle(model, {open_with(arguments)}) as handle:"]
        step += ["    value, gradients = handle.gradients(bulk, loss)"]
        run, by_calls = [*lines, *step], "    right, others = handle.gradients(single, expected)"
        try:
            done = execute([*step, by_calls], **made)
        except Exception as error:
            raise Finding(f"{type(error).__name__}: {error}", [*run, by_calls]) from error
        value, gradients, right, others = (done[x] for x in ("value", "gradients", "right", "others"))
        if self.packed and recorded_by_numpy(made["mapped"]) != recorded_by(made["mapped"]):
            raise Finding("compiled code records another map than NumPy", lines)
        precisions = self.options.precisions
        oracle = Oracle(single, made["expected"], weights_of(model), precisions=precisions)
        if diagnostic := oracle.diagnostic(value, gradients, model):
            shown = reference_of("single", precisions=precisions)
            raise Finding(diagnostic[0], [*run, *shown, "loss = expected", *diagnostic[1]])
        assert self.distinct or len(bulk) == len(single)
        differs = None if self.distinct else differing(gradients, others)
        if differs or value != right:
            what = "a gradient" if differs else "the loss"
            same = "    assert np.array_equal(gradients[name], others[name]), name"
            shown = [*run, by_calls, "assert value == right", "for name in gradients:", same]
            raise Finding(f"{what} of a map differs from that of calls", shown)


def recorded_by(record: Callable[[vpps.Graph], Any]) -> list[Any]:
    """Return the vertices that a function records in a graph."""
    graph = vpps.Graph()
    record(graph)
    return contents_of(graph)


def recorded_by_numpy(record: Callable[[vpps.Graph], Any]) -> list[Any]:
    """Return the recorded vertices without compiled code."""
    with patch.object(vertices, "new_tape", vertices.Tape):
        return recorded_by(record)


def draw(random: Random) -> Map:
    """Draw a random map."""
    lists = random.random() < 0.5
    n = random.randint(1, random.choice((4, 10, 24)))
    kinds = tuple(
        Kind(random.random() < 0.6, random.random() < 0.5, draw_ops(random, 5)) for _ in range(random.randint(1, 3))
    )
    near = random.choice((0, 1, None))  # common children of many vertices: none, the preceding vertex, or any
    vertices = tuple(
        Vertex(
            random.randrange(6),
            tuple(
                near if near is not None and random.random() < 0.3 else random.randrange(25)
                for _ in range(random.randrange(4) if lists else 2)
            ),
            random.randrange(ROWS),
            random.choice((k, random.randrange(n))),
        )
        for k in range(n)
    )
    return Map(
        seed=random.randrange(10**6),
        width=random.choice((0, 1, 1, 2, 3)),
        kinds=kinds,
        states=random.randrange(2),
        lists=lists,
        vertices=vertices,
        wanted=tuple(random.randrange(n) for _ in range(random.randint(1, 12))),
        distinct=random.random() < 0.15,
        levels=random.random() < 0.4,
        ops=random.random() < 0.5,
        deep=random.random() < 0.3,
        vps=random.choice((1, 2, 3)),
        paper=random.random() < 0.25,
        options=draw_options(random),
        packed=random.random() < 0.5,
    )
