"""Ctrl-C at random points of calls that change something is passed on. Files are entirely old or new, and training
continues as if the call had been made, or as if not."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import numpy as np

import vpps
from tests.data.damage import example
from tests.fuzz.graphs import differing
from tests.fuzz.histories import STATE, state
from tests.fuzz.program import Finding, execute
from tests.interruptions import interrupt_at
from vpps.data import GraphSet

MODEL = [
    "import numpy as np, vpps, vpps.engine.configuration",
    "def new():",
    "    model = vpps.Model(seed=1)",
    '    E, W, b = model.lookup("E", (6, 8)), model.parameter("W", (8, 8)), model.parameter("b", (8,))',
    "    @vpps.cell",
    "    def cell(h, x):",
    "        return vpps.tanh(W @ h + x + b)",
    "    def batch(k):",
    "        graph = vpps.Graph()",
    "        h = graph.zeros(8)",
    "        for i in range(1 + k % 3):",
    "            h = cell(h, graph.lookup(E, (k + i) % 6))",
    "        return graph, vpps.sum(h)",
    "    return model, batch, vpps.Handle(model, vpps.Adam(0.01), target='cpu', vps=2, ema=0.9)",
]
CALLS = {
    "fb": "handle.fb(*batch(2))",
    "accumulate": "handle.fb(*batch(2), accumulate=True)",
    "gradients": "handle.gradients(*batch(2))",
    "forward": "graph, loss = batch(2); handle.forward(graph, [loss])",
    "latest": "handle.fb(*batch(2)); handle.sync_get_latest_loss()",
    "save": "model.save(path)",
    "weights": "model.numpy()",
    "configure": "handle._configurator.configure(vpps.engine.configuration.Configuration(vps=3)); handle.fb(*batch(2))",
    "assign": "model['b'].assign(np.ones(8))",
    "averaged": "with model.averaged(): handle.forward(g := vpps.Graph(), [g.lookup(model['E'], 1)])",
    "graphs": "graphs.save(path)",
}


@dataclass(frozen=True)
class Interruption:
    """An interrupted call.

    Attributes:
        call: name from `CALLS`.
        point: number of points at which Python checks for signals before the interruption.
        before: updates before the call.
        then: updates after the call.
    """

    call: int
    point: int
    before: int = 0
    then: int = 0

    def check(self) -> None:
        """Raise Finding if the state is neither that before the call nor that after it."""
        name = list(CALLS)[self.call % len(CALLS)]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "file"
            _files(self, path) if name == "graphs" else self._trains(name, path)

    def _trains(self, name: str, path: Path) -> None:
        made = execute(MODEL)
        model, batch, handle = made["new"]()
        for k in range(self.before):
            handle.fb(*batch(k))
        model.save(path)
        text = CALLS[name]
        names = {"model": model, "batch": batch, "handle": handle, "path": path, "np": np, "vpps": vpps}
        work = compile(text, "<call>", "exec")
        _warm(name)
        met, came = interrupt_at(self.point, lambda: exec(work, names))
        shown = self._program(text)
        if met and not came:
            raise Finding(f"{name}: Ctrl-C does not come through", shown)
        if [p for p in path.parent.iterdir() if p != path]:
            raise Finding(f"{name}: Ctrl-C leaves a file", shown)
        try:
            vpps.Model.load(path)
            held = handle.accumulated
            for k in range(self.then):
                handle.fb(*batch(k))
            handle.close()
        except Exception as error:
            raise Finding(f"{name}: after Ctrl-C {type(error).__name__}: {error}", shown) from error
        got = state(model)
        # The call was made or not; calls with two actions may have done only the first.
        ways = {"latest": ("", "handle.fb(*batch(2))"), "configure": ("", "handle.fb(*batch(2))")}.get(name, ("", text))
        for way in ways:
            other, others, witness = made["new"]()
            for k in range(self.before):
                witness.fb(*others(k))
            exec(way, {**names, "model": other, "batch": others, "handle": witness, "path": path.with_name("other")})
            same_calls = witness.accumulated == held
            for k in range(self.then):
                witness.fb(*others(k))
            witness.close()
            if same_calls and other.step == model.step and not differing(got, state(other)):
                return
        raise Finding(f"{name}: after Ctrl-C training is neither as with the call nor as without", shown)

    def _program(self, text: str) -> list[str]:
        return [
            *MODEL, "import sys, tempfile", 'path = tempfile.mkdtemp() + "/file"', "model, batch, handle = new()",
            *(f"handle.fb(*batch({k}))" for k in range(self.before)), "model.save(path)", f"left = {self.point}",
            "def interrupt(frame, event, argument):", "    global left",
            '    left -= event == "c_return" or event == "call" and not frame.f_code.co_flags & 32',
            "    if left < 0:", "        sys.setprofile(None)", "        raise KeyboardInterrupt",
            "try:", "    sys.setprofile(interrupt)", f"    {text}", "except KeyboardInterrupt:", "    print('met')",
            *(f"handle.fb(*batch({k}))" for k in range(self.then)), "handle.close()",
            *STATE, "print(model.step, {k: float(abs(x).sum()) for k, x in state(model).items()})",
        ]  # fmt: skip


@cache
def _warm(name: str) -> None:
    """Do all of a process's one-time work: compiling, loading, importing."""
    made = execute(MODEL)
    model, batch, handle = made["new"]()
    with tempfile.TemporaryDirectory() as folder:
        names = {"model": model, "batch": batch, "handle": handle, "path": Path(folder) / "f", "np": np, "vpps": vpps}
        for _ in range(2):
            handle.fb(*batch(0))
            exec(CALLS[name], names)
    handle.close()


def _files(case: Interruption, path: Path) -> None:
    old, new = example(), example(lists=True)
    old.save(path)
    before = path.read_bytes()
    met, came = interrupt_at(case.point, lambda: new.save(path))
    shown = [f"# graphs.save(path), interrupted at point {case.point}"]
    if met and not came:
        raise Finding("GraphSet.save: Ctrl-C does not come through", shown)
    if [p for p in path.parent.iterdir() if p != path]:
        raise Finding("GraphSet.save: Ctrl-C leaves a file", shown)
    if path.read_bytes() != before and len(GraphSet.load(path)) != len(new):
        raise Finding("GraphSet.save: Ctrl-C leaves half a file", shown)


def draw(random: Random) -> Interruption:
    """Draw a random interruption."""
    point = int(10 ** random.uniform(0, 3.4))
    return Interruption(random.randrange(len(CALLS)), point, random.randrange(3), random.randrange(3))
