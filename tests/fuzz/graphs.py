"""Random graphs of random cells (recurrences, lists, unread values) in random configurations. Results agree with the
reference, and are bit-identical for any number of virtual processors and any schedule. The verifier accepts every kind
of launch, planned for a random machine, which does not have to exist."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import numpy as np

import vpps
from tests.fuzz import autograd, cells
from tests.fuzz.cells import ROWS, Cell, declarations
from tests.fuzz.oracle import Oracle, reference_of
from tests.fuzz.program import Finding, execute
from tests.planner import launches
from vpps.compiler.passes import lazy_batching
from vpps.model.precisions import ALL_EXACT, Precisions
from vpps.reference import Reference, key_of, weights_of

HEAD = ["import numpy as np, vpps"]
EXAMPLE = "model", "graph", "loss", "used"
POLICIES = ("sinks-last", "depth", "agenda", "sufficient", "critical")
PASSES = ("horizontal", "lazy_batching", "streaming")


class Call(NamedTuple):
    """Number of the called cell, and numbers that choose its arguments; any numbers are valid."""

    cell: int
    numbers: tuple[int, ...]


class Options(NamedTuple):
    """A configuration; any ints are valid.

    Attributes:
        off: passes that are switched off.
        fused: True to fuse elementwise operators into new instructions, which needs a compiler.
        short: streams of two rows.
        bf16: True if products round.
    """

    policy: int = 0
    off: tuple[int, ...] = ()
    fused: bool = False
    short: bool = False
    bf16: bool = False

    @property
    def precisions(self) -> Precisions:
        """Return the products' precisions."""
        return Precisions("bf16") if self.bf16 else ALL_EXACT

    @property
    def named(self) -> dict[str, str]:
        """Return a handle's arguments as text."""
        off = dict.fromkeys(PASSES[i % len(PASSES)] for i in self.off)
        if not self.fused:
            off["fusion"] = None
        passes = ", ".join(f"{name}=False" for name in off)
        found = {}
        if policy := self.policy % len(POLICIES):
            found["policy"] = f'"{POLICIES[policy]}"'
        if passes:
            found["passes"] = f"vpps.Passes({passes})"
        if self.bf16:
            found["precision"] = '"bf16"'
        return found


DEFAULT = Options()


@dataclass(frozen=True)
class Graph:
    """A random graph.

    Attributes:
        seed: seed for weights and inputs.
        cells: cells that may be called.
        calls: the calls.
        used: values that the loss reads, as positions counted from the end; at least one is valid.
        vps: numbers of virtual processors of two handles, which must give identical bits.
        paper: True if the second handle has the other schedule.
        train: with dropout.
        options: configuration of both handles.
    """

    seed: int
    cells: tuple[Cell, ...]
    calls: tuple[Call, ...]
    used: tuple[int, ...]
    vps: tuple[int, ...] = ()
    paper: bool = False
    train: bool = False
    options: Options = DEFAULT

    def source(self, calls: tuple[Call, ...] | None = None) -> list[str]:
        """Return lines that make `graph`, `used` and `loss` from `rng` and the cells, named cell0, cell1 ..."""
        lines: list[str] = []
        stocks: dict[int, list[str]] = {}
        everything: list[str] = []

        def stock(w: int) -> list[str]:
            if w not in stocks:
                stocks[w] = [f"x{w}", f"y{w}", f"z{w}"]
                lines.append(f"x{w}, y{w} = graph.input(rng.normal(size={w})), graph.lookup(E0_{w}, 1)")
                lines.append(f"z{w} = graph.zeros({w})")
                everything.extend(stocks[w][:2])
            return stocks[w]

        for k, (which, numbers) in enumerate(self.calls if calls is None else calls):
            if not self.cells:
                break
            number = which % len(self.cells)
            cell = self.cells[number]
            known = stock(cell.w)
            drawn = iter(numbers + 12 * (0,))

            def some(n: int, known: list[str] = known) -> str:
                return known[-1 - n // 2 % min(3, len(known))] if n % 2 else known[n // 2 % len(known)]

            given = [some(next(drawn)) for _ in range(cell.vectors)]
            for _ in range(cell.lists):
                n, first = next(drawn) % 4, next(drawn)
                given.append(f"[{', '.join(some(first + 3 * i) for i in range(n))}]")
            if cell.row:
                given.append(str(next(drawn) % ROWS))
            if cell.own:
                given.append(f"x{cell.w}")
            results = [f"h{k}_{i}" for i in range(1 + len(cell.results))]
            lines.append(f"{', '.join(results)} = graph.call({', '.join([f'cell{number}', *given])})")
            known.extend(results)
            everything.extend(results)
        if not everything:
            stock(3)
        used = [everything[-1 - i % len(everything)] for i in self.used]
        trained = everything[1]  # a table row comes last, so that something can be trained
        used = [*(e for e in dict.fromkeys(used) if e != trained), trained]
        lines = [f"rng, graph = np.random.default_rng({self.seed}), vpps.Graph()", *lines]
        return [
            *lines,
            f"used = [{', '.join(used)}]",
            "terms = [vpps.dot(v, graph.input(rng.normal(size=v.shape))) for v in used]",
            f"loss = vpps.sum(terms) * {1 / len(used):.3g}",
        ]

    def program(self) -> list[str]:
        """Return lines that make `model`, `graph`, `used` and `loss`."""
        made = [line for k, cell in enumerate(self.cells) for line in cell.source(f"cell{k}")]
        graph = self.source()
        return [*HEAD, f"model = vpps.Model(seed={self.seed})", *declarations(made + graph), *made, *graph]

    def build(self) -> tuple[vpps.Model, vpps.Graph, list[vpps.Expression], vpps.Expression]:
        """Return the model, the graph, its used values, and the loss."""
        made = execute(self.program())
        return made["model"], made["graph"], made["used"], made["loss"]

    def check(self) -> None:
        """Raise Finding if results disagree."""
        lines = self.program()
        made = execute(lines)
        model = made["model"]
        key = key_of(model) if self.train else None
        oracle = Oracle(made["graph"], made["loss"], weights_of(model), key, self.options.precisions)
        if autograd.INSTALLED:
            self._compare_with_autograd(lines, made)
        arguments = self.options.named
        first, second = (*self.vps, 1, 2)[:2]
        paper = {"schedule": '"paper"'} if self.paper else {}
        settings = [{"vps": str(first), **arguments}, {"vps": str(second), **paper, **arguments}]
        before = lazy_batching.CHUNK_ROWS
        if self.options.short:
            lines = [*lines, "from vpps.compiler.passes import lazy_batching", "lazy_batching.CHUNK_ROWS = 2"]
            lazy_batching.CHUNK_ROWS = 2
        try:
            self._compare(lines, made, oracle, settings)
            self._verify_launches(lines, made)
        finally:
            lazy_batching.CHUNK_ROWS = before

    def _verify_launches(self, lines: list[str], made: dict[str, Any]) -> None:
        """Verify launches for some machine, with some policy."""
        random, precision = Random(self.seed), self.options.precisions.others
        c = launches.draw(random, random.choice(launches.MACHINES))
        it = launches.Example(*(made[x] for x in EXAMPLE))
        try:
            for plan in launches.plans(it, c, precision=precision):
                launches.verify(plan)
        except Exception as error:
            run = [*lines, "from tests.planner import launches", "from tests.planner.launches import Configuration"]
            run.append(f"it = launches.Example({', '.join(EXAMPLE)})")
            run.append(f"for plan in launches.plans(it, {c!r}, precision={precision!r}):")
            raise Finding(f"{type(error).__name__}: {error}", [*run, "    launches.verify(plan)"]) from error

    def _compare_with_autograd(self, lines: list[str], made: dict[str, Any]) -> None:
        """Compare the reference, without dropout, with PyTorch."""
        weights = weights_of(made["model"])
        reference = Reference(made["graph"], weights)
        value, expected = float(reference.value(made["loss"])), reference.backward(made["loss"])
        loss, gradients = autograd.losses(lines, weights)
        largest = max(map(np.linalg.norm, expected.values()))
        wrong = [k for k, g in gradients.items() if np.linalg.norm(g - expected[k]) > autograd.TOLERANCE * largest]
        if abs(value - loss) > autograd.TOLERANCE * max(abs(loss), 1) or wrong:
            raise Finding(f"PyTorch gives another {'gradient' if wrong else 'loss'} than the reference: {wrong}",
                        [*lines, *reference_of("graph"), "print(reference.value(loss), reference.backward(loss))",
                         f"# in PyTorch {loss}, {({k: gradients[k].tolist() for k in wrong})}"])  # fmt: skip

    def _compare(self, lines: list[str], made: dict[str, Any], oracle: Oracle, settings: list[dict[str, str]]) -> None:
        model, used = made["model"], made["used"]
        found: list[tuple[float, dict[str, Any]]] = []
        opened = [f"vpps.Handle(model, {open_with(s)})" for s in settings]
        call = f"handle.gradients(graph, loss{', train=True' if self.train else ''})"
        for text in opened:
            step = [f"with {text} as handle:", f"    value, gradients = {call}"]
            step += ["    values = [handle.value(e) for e in used]", "    again = handle.forward(graph, used)"]
            run = [*lines, *step]
            try:
                done = execute(step, **made)
            except Exception as error:
                raise Finding(f"{type(error).__name__}: {error}", run) from error
            value, gradients, values, again = (done[x] for x in ("value", "gradients", "values", "again"))
            if diagnostic := oracle.diagnostic(value, gradients, model, used, values):
                shown = reference_of("graph", self.train, self.options.precisions)
                raise Finding(diagnostic[0], [*run, *shown, *diagnostic[1]])
            if not self.train and differing(dict(enumerate(values)), dict(enumerate(again))) is not None:
                raise Finding("a value differs in inference",
                            [*run, "assert all(np.array_equal(*pair) for pair in zip(values, again))"])  # fmt: skip
            found.append((value, gradients))
        for text, (value, gradients) in zip(opened[1:], found[1:], strict=True):
            differs = differing(found[0][1], gradients)
            if not np.array_equal(value, found[0][0], equal_nan=True) or differs:
                what = "a gradient" if differs else "the loss"
                raise Finding(
                    f"{what} differs between virtual processors or schedules",
                    [
                        *lines,
                        "found = []",
                        f"for make in (lambda: {opened[0]}, lambda: {text}):",
                        "    with make() as handle:",
                        f"        found.append({call})",
                        "assert found[0][0] == found[1][0]",
                        "for name, gradient in found[0][1].items():",
                        "    assert np.array_equal(gradient, found[1][1][name]), name",
                    ],
                )


def open_with(arguments: dict[str, str]) -> str:
    """Return a handle's arguments as text."""
    return ", ".join(['target="cpu"', "verify=True", *(f"{name}={value}" for name, value in arguments.items())])


def draw_options(random: Random) -> Options:
    """Draw a random configuration."""
    off = tuple(random.randrange(len(PASSES)) for _ in range(random.choice((0, 0, 1, 2, 8))))
    return Options(
        random.randrange(len(POLICIES)), off, random.random() < 0.4,
        random.random() < 0.4, random.random() < 0.25,
    )  # fmt: skip


def draw_calls(random: Random, n_cells: int, most: int) -> tuple[Call, ...]:
    """Draw some random calls."""
    n = random.randint(0, most)
    return tuple(Call(random.randrange(n_cells), tuple(random.randrange(1000) for _ in range(8))) for _ in range(n))


def draw(random: Random) -> Graph:
    """Draw a random graph."""
    widths = random.choice((2, 2, len(cells.WIDTHS)))
    drawn = tuple(cells.draw(random, widths) for _ in range(random.randint(1, 3)))
    calls = draw_calls(random, len(drawn), random.choice((6, 14, 24)))
    used = tuple(random.randrange(100) for _ in range(random.randint(1, 6)))
    vps = tuple(random.choice((1, 2, 3, 7)) for _ in range(2))
    seed, paper, train = random.randrange(10**6), random.random() < 0.4, random.random() < 0.4
    return Graph(seed, drawn, calls, used, vps, paper, train, draw_options(random))


def differing(a: dict[Any, Any], b: dict[Any, Any]) -> Any:
    """Return the first name whose arrays differ, or None; missing arrays count as zeros."""
    for name in [*a, *b]:
        x, y = (
            np.asarray(some[name]) if name in some else np.zeros_like(other[name]) for some, other in ((a, b), (b, a))
        )
        if x.tobytes() != y.tobytes():
            return name
    return None
