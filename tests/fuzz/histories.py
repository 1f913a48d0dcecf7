"""Random training histories: continuing from checkpoints in other processes, and using other handles and configurations
in between, changes no bit. Training follows a plain NumPy model."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

import vpps
from tests.comparison import relative_error
from tests.fuzz import cells, graphs
from tests.fuzz.cells import Cell, declarations
from tests.fuzz.expected import Expected
from tests.fuzz.graphs import DEFAULT, HEAD, Call, Graph, Options, open_with
from tests.fuzz.program import Finding, execute

RULES = (
    "vpps.SGD(lr=0.05, weight_decay=0.1)", "vpps.SGD(lr=0.1)", "vpps.Momentum(lr=0.02, momentum=0.8)",
    "vpps.Nesterov(lr=0.02, momentum=0.8, weight_decay=0.1)", "vpps.Adam(lr=0.01, eps=0.01)",
    "vpps.Adam(lr=0.01, eps=0.01, weight_decay=0.1)", "vpps.AdamW(lr=0.01, eps=0.01)",
    "vpps.Adagrad(lr=0.02, eps=0.1)", "vpps.RMSprop(lr=0.01, eps=0.1)",
)  # fmt: skip
WEIGHTS = {
    "fb": 8, "accumulate": 4, "resume": 3, "configure": 2, "handle": 1, "evaluate": 1, "discard": 1, "freeze": 1,
    "assign": 1, "halves": 6, "declare": 1, "interrupt": 2, "averaged": 1, "look": 2, "keep": 1, "back": 2,
}  # fmt: skip
"""Events and their drawing frequencies."""
EVENTS = tuple(WEIGHTS)
STEPS = "fb", "halves", "interrupt"
WITHOUT_TRACE = ("resume", "configure", "handle", "evaluate", "halves", "interrupt", "averaged", "look")
KEEPING = [
    "from threading import current_thread, main_thread",
    "def interrupted(launch):",
    "    def launched(*given):",
    "        if current_thread() is main_thread(): raise KeyboardInterrupt",
    "        return launch(*given)",
    "    return launched",
    "kept = []",
    "def keep(model):",
    "    if all(p.trainable for p in model):",
    "        kept.append([p.name for p in model])",
    '        model.save(f"{path}.kept")',
    "def back(model):",
    "    if kept[-1:] == [[p.name for p in model]] and all(p.trainable for p in model):",
    '        model.restore(f"{path}.kept")',
]
"""Functions of the program: an earlier checkpoint is restored if the model has the same parameters."""


class Event(NamedTuple):
    """An event, and a number that chooses its object; any ints are valid."""

    what: int
    number: int

    @property
    def name(self) -> str:
        """Return one of `EVENTS`."""
        return EVENTS[self.what % len(EVENTS)]


@dataclass(frozen=True)
class History:
    """A random history.

    Attributes:
        seed: seed for weights and inputs.
        cells: cells of all graphs.
        batches: training graphs.
        used: values that each loss reads.
        events: events in order.
        rule: optimizer.
        averages: True for moving averages.
        clip: True to clip gradients.
        options: configuration of all handles.
        shards: True if every step has two shards, in a world of one process.
    """

    seed: int
    cells: tuple[Cell, ...]
    batches: tuple[tuple[Call, ...], ...]
    used: tuple[int, ...]
    events: tuple[Event, ...]
    rule: int = 0
    averages: bool = False
    clip: bool = False
    options: Options = DEFAULT
    shards: bool = False

    def opened(self) -> str:
        """Return a training handle with `vps` virtual processors, as text."""
        given = {"vps": "vps", **self.options.named}
        given |= {"ema": "0.8"} if self.averages else {}
        given |= {"clip_norm": "0.5"} if self.clip else {}
        given |= {"world": 'vpps.distributed.init("alone", shards=2)'} if self.shards else {}
        return f"vpps.Handle(model, {RULES[self.rule % len(RULES)]}, {open_with(given)})"

    def program(self) -> list[str]:
        """Return lines that define `new` (a model and its batches) and `run` (the history, optionally without traceless
        events)."""
        batches = self.batches or ((),)
        made = [line for k, cell in enumerate(self.cells) for line in cell.source(f"cell{k}")]
        graph = Graph(self.seed, self.cells, (), self.used)
        sources = [graph.source(calls) for calls in batches]
        declared = declarations(made + [line for lines in sources for line in lines])
        lines = [
            *HEAD,
            *KEEPING,
            'LATE = "late"',
            "def new():",
            *_indented([f"model = vpps.Model(seed={self.seed})", *declared, *made]),
        ]
        late = "loss + vpps.sum(model[LATE] * graph.input([1, 2]))"
        lines += [
            "    declare = lambda: LATE in model or model.parameter(LATE, (2,), init='normal')",
            "    def batch(k):",
        ]
        lines += [
            "        graph, loss = recorded(k)",
            f"        return graph, loss if k % 2 or LATE not in model else {late}",
        ]
        lines.append("    def recorded(k):")
        for k, source in enumerate(sources):
            if k + 1 < len(sources):
                lines += [f"        if k == {k}:", *_indented([*source, "return graph, loss"], 12)]
            else:
                lines += _indented([*source, "return graph, loss"], 8)
        lines.append("    return model, batch, declare")
        names = [line.split(" = ")[0] for line in declared]
        body = ["kept.clear()", "model, batch, declare = new()"]
        body += [f"make = lambda vps: {self.opened()}", "handle = make(1)"]
        for event in self.events:
            body += self._lines(event, names)
        body += ["handle.close()", "return model"]
        return [*lines, "def run(plain):", *_indented(body)]

    def _lines(self, event: Event, names: list[str]) -> list[str]:
        n, batch = event.number, event.number % max(len(self.batches), 1)
        interrupted = [
            "if not plain:",
            "    machine = type(handle._engine.machine)",
            "    launch, machine.launch = machine.launch, interrupted(machine.launch)",
            f"    try: handle.fb(*batch({batch}))",
            "    except KeyboardInterrupt: pass",
            "    finally: machine.launch = launch",
        ]
        if event.name == "interrupt":  # afterwards the call is repeated
            return [*interrupted, *self._lines(event._replace(what=EVENTS.index("fb")), names)]
        if self.shards and event.name in (*STEPS, "accumulate"):
            first, second = (
                f"handle.fb(*batch({k}){', accumulate=True' if event.name == 'accumulate' else ''})"
                for k in self._batches_of(event)
            )
            between = [f"if not plain: handle.gradients(*batch({batch}))"] if event.name == "halves" else []
            return [first, *between, second]
        again = f"handle = make({1 + n % 3})"
        name = _changed(names, n)
        match event.name:
            case "declare":
                return ["declare()"]
            case "fb":
                return [f"handle.fb(*batch({batch}))"]
            case "halves":  # `apply` adds the accumulated gradients in a different order
                return [
                    f"graph, loss = batch({batch})",
                    "if plain:",
                    "    handle.fb(graph, loss)",
                    "else:",
                    f"    update = bool({n % 2} or handle.accumulated)",
                    "    handle.forward(graph, [loss], train=True, keep=True, update=update)",
                    *(["    handle.forward(graph, [loss])"] if n % 3 == 0 else []),  # its forward is repeated
                    "    found = handle.backward([1])",
                    "    if not update:",
                    "        handle.apply(found)",
                ]
            case "accumulate":
                return [f"handle.fb(*batch({batch}), accumulate=True)"]
            case "discard":
                return ["handle.discard_accumulated()"]
            case "freeze":
                return [f'model["{name}"].trainable ^= True'] if name else []
            case "assign":
                return [f'model["{name}"].assign(np.tanh(model["{name}"].numpy()))'] if name else []
            case "keep" | "back":
                return [f"{event.name}(model)"]
            case "averaged":
                shown = ["with model.averaged():", "    handle.gradients(*batch(0))", "    model.save(path)"]
                going = shown if self.averages else ["model.numpy()"]
            case "look":
                going = [
                    "model.save(path)",
                    f"graph, loss = batch({batch})",
                    "with vpps.Handle(model, train=False, target='cpu') as other: other.forward(graph, [loss])",
                    "handle.disassemble(graph, loss)",
                    "try: handle.fb(vpps.Graph(), loss)",
                    "except vpps.GraphError: pass",
                    *(["handle.value(handle.forward(graph, [loss]) and loss)"] if n % 2 else []),
                ]
            case "resume":
                going = ["handle.close()", "model.save(path)", "old = model", "model, batch, declare = new()"]
                if any(event.name == "declare" for event in self.events):
                    going.append("if LATE in old: declare()")
                if any(event.name == "freeze" for event in self.events):  # a program declares it as before
                    going.append('[setattr(p, "trainable", old[p.name].trainable) for p in model]')
                going += ["model.restore(path)", again]
                if n % 2:  # it must not matter which cell is seen first
                    going.append(f"handle.gradients(*batch({(batch + 1) % max(len(self.batches), 1)}))")
            case "configure":
                schedule = ', schedule="paper"' if n % 4 == 3 else ""
                named = self.options.named
                if self.options.bf16:
                    named["precision"] = "vpps.model.precisions.Precisions('bf16')"
                given = "".join(f", {key}={value}" for key, value in named.items())
                configuration = f"vpps.engine.configuration.Configuration(vps={1 + n % 5}{schedule}{given})"
                going = [f"handle._configurator.configure({configuration}, records={n % 3 == 0})"]
            case "handle":
                going = ["handle.close()", again]
            case _:
                table = next(name for name in names if name.startswith("E"))
                going = [f"handle.forward(g := vpps.Graph(), [g.lookup(model[\"{table}\"], 2)])",
                         f"handle.gradients(*batch({batch}))"]  # fmt: skip
        return ["if not plain:", *_indented(going)]

    def _batches_of(self, event: Event) -> list[int]:
        """Return the numbers of a step's graphs."""
        return [(event.number + k) % max(len(self.batches), 1) for k in range(1 + self.shards)]

    def check(self) -> None:
        """Raise Finding if histories differ."""
        lines = self.program()
        header = [
            "import tempfile, vpps.engine.configuration, vpps.model.precisions",
            'path = tempfile.mkdtemp() + "/model"',
        ]
        shown = [*lines[:1], *header, *lines[1:]]
        with tempfile.TemporaryDirectory() as folder:
            made = execute(lines, path=Path(folder) / "model")
            try:
                plain = made["run"](True)
            except vpps.VppsError as error:
                raise Finding(f"{type(error).__name__}: {error}", [*shown, "run(True)"]) from error
            self._follows(plain, made["new"], shown)
            if not any(event.name in WITHOUT_TRACE for event in self.events):
                return
            try:
                other = made["run"](False)
            except vpps.VppsError as error:
                raise Finding(f"{type(error).__name__}: {error}", [*shown, "run(False)"]) from error
            a, b = state(plain), state(other)
            if differs := graphs.differing(a, b):
                weights = differs in plain
                get = ["a, b = run(True).numpy(), run(False).numpy()"]
                if not weights:
                    get = [*STATE, "a, b = state(run(True)), state(run(False))"]
                what = "weights differ" if weights else "the state of training differs"
                compare = "assert not (wrong := [k for k in a if a[k].tobytes() != b[k].tobytes()]), wrong"
                raise Finding(f"{what}: {differs} (after {', '.join(self.between())})", [*shown, *get, compare])

    def between(self) -> list[str]:
        """Return events that should leave no trace."""
        return sorted({event.name for event in self.events if event.name in WITHOUT_TRACE})

    def expected(self, new: Any, noise: float = 0.0) -> Expected:
        """Return the expected result of the history."""
        model, batch, declare = new()
        rule = eval(RULES[self.rule % len(RULES)], {"vpps": vpps})
        expected = Expected(model, rule, 0.8, 0.5 if self.clip else None, noise)
        names = [p.name for p in model]
        kept: Any = None
        for event in self.events:
            name = _changed(names, event.number)
            if event.name in ("keep", "back") and all(p.trainable for p in model):
                if event.name == "keep":
                    kept = [p.name for p in model], expected.state()
                elif kept and kept[0] == [p.name for p in model]:
                    expected.restore(kept[1])
            if event.name in (*STEPS, "accumulate"):
                for shard, k in enumerate(self._batches_of(event)):
                    expected.accumulate(*batch(k), shard)
            if event.name in STEPS:
                expected.update()
            elif event.name == "discard":
                expected.discard()
            elif event.name == "declare":
                declare()
                expected.declare()
            elif event.name == "freeze" and name:
                model[name].trainable ^= True
                expected.begin_average(name)
            elif event.name == "assign" and name:
                expected.assign(name, np.tanh(expected.weights[name].astype(np.float32)))
        return expected

    def _follows(self, model: vpps.Model, new: Any, shown: list[str]) -> None:
        expected = self.expected(new)
        if expected.explodes or self.options.bf16:  # the reference would not round the same weights
            return
        if model.step != expected.updates:
            raise Finding("updates are counted wrong", [*shown, f"assert run(True).step == {expected.updates}"])
        noisy: list[Expected] = []
        for p in model:
            pairs = [("numpy", p.numpy(), lambda e, p=p: e.weights[p.name])]
            if self.averages:
                pairs.append(("average", p.average(), lambda e, p=p: e.average(e.model[p.name])))
            for what, value, of in pairs:
                right = of(expected)
                error = relative_error(value, right)
                if error <= 1e-5:
                    continue
                noisy = noisy or [self.expected(new, 1e-6), self.expected(new, -1e-6)]
                moved = max(relative_error(of(e), right) for e in noisy)
                if not error <= 1e-5 + 10 * moved and np.isfinite(right).all():
                    at = tuple(map(int, np.unravel_index(np.argmax(np.abs(value - right)), right.shape)))
                    off, wanted = float(np.abs(value - right)[at]), float(right[at])
                    show = [f'found = run(True)["{p.name}"].{what}()[{at}]', f"print(found, {wanted})"]
                    kind = "table" if isinstance(p, vpps.Lookup) else "parameter"
                    raise Finding(f"{kind} {p.name}: {what} differs from training in NumPy: relative error {error:.1e}",
                                [*shown, *show, f"assert abs(found - {wanted}) < {off / 2:.3g}"])  # fmt: skip


STATE = [
    "def state(model):",
    "    found = model.numpy()",
    "    moments = model.optimizer_state.moments.items() if model.optimizer_state else ()",
    '    found |= {f"{m}/{k}": v for m, some in moments for k, v in some.items()}',
    '    return found | ({f"average/{p.name}": p.average() for p in model} if model.averages else {})',
]
state = execute(STATE)["state"]


def _changed(names: list[str], n: int) -> str | None:
    """Return the parameter that is frozen or assigned; tables are not chosen, so that something is trained."""
    some = [name for name in names if not name.startswith("E")]
    return some[n % len(some)] if some else None


def _indented(lines: list[str], by: int = 4) -> list[str]:
    return [" " * by + line for line in lines]


def draw(random: Random) -> History:
    """Draw a random history."""
    widths = random.choice((2, 2, len(cells.WIDTHS)))
    products = random.random() < 0.3
    drawn = tuple(cells.draw(random, widths, ops=6, products=products) for _ in range(random.randint(1, 3)))
    batches = tuple(graphs.draw_calls(random, random.randint(1, len(drawn)), 8) for _ in range(random.randint(1, 3)))
    if random.random() < 0.5:  # other cells come first
        batches = tuple(tuple(Call(-1 - call.cell, call.numbers) for call in calls) for calls in batches)
    whats = random.choices(range(len(EVENTS)), [*WEIGHTS.values()], k=random.randint(2, 14))
    options = graphs.draw_options(random)._replace(policy=random.choice((0, 0, 1, 2, 3, 4)), short=False)
    return History(
        random.randrange(10**6), drawn, batches, tuple(random.randrange(60) for _ in range(random.randint(1, 5))),
        tuple(Event(what, random.randrange(12)) for what in whats), random.randrange(len(RULES)),
        random.random() < 0.5, random.random() < 0.25, options, random.random() < 0.3,
    )  # fmt: skip
