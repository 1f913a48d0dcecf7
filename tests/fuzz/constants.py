"""Constants that change from step to step, in bare ops, in redefined cells and in keyword arguments. All forms give
identical bits, and match separate programs run in separate handles."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from unittest.mock import patch

from tests.fuzz.program import Finding, execute
from vpps.record import trace

OPS = (
    "vpps.clamp(y, low={c})", "vpps.clamp(y, high={c})", "vpps.leaky_relu(y, {c})", "vpps.elu(y, {c})", "y + {c}",
    "y * {c}", "vpps.where(y > {c}, y, {c})", "vpps.where(y <= {c}, {c}, y)", "y - vpps.eq(y, {c})", "-y * -{c}",
    "vpps.tanh(y) * {c} + y * -{c}", "vpps.layer_norm(y, eps=abs({c}) + 1e-6)", "vpps.dropout(y, abs({c}) % 0.9)",
)  # fmt: skip
VALUES = (0.0, -0.0, 1e-45, -1e-30, 0.3, -0.3, -0.7, 1.0, -1.0, 3.5)
OPTIONS = "'cpu'", "'cpu', vps=2", "'cpu', schedule='paper'", "'cpu', passes=vpps.Passes(fusion=False)"


@dataclass(frozen=True)
class Constants:
    """Consecutive ops with their constants at each step, and the handle's target and options."""

    ops: tuple[int, ...]
    steps: tuple[tuple[float, ...], ...]
    options: str
    seed: int

    def program(self) -> list[str]:
        """Return `run(handle, k)`: gradients and values of step k, in all forms; two also run other constants."""
        return [
            "import numpy as np, vpps",
            f"data = np.random.default_rng({self.seed}).normal(size=(3, 5))",
            f"steps = {self.steps}",
            "def f(y, c):",
            *[f"    y = {OPS[op].format(c=f'c[{k}]')}" for k, op in enumerate(self.ops)],
            "    return y",
            "keyword = vpps.cell(lambda y, *, c: f(y, c))",
            "def run(handle, k):",
            "    c, d, graph = steps[k], steps[k - 1], vpps.Graph()",
            "    of_c = [lambda y: f(y, c), vpps.cell(lambda y: f(y, c)), lambda y: keyword(y, c=c)]",
            "    forms = [*of_c, vpps.cell(lambda y: f(y, d)), lambda y: keyword(y, c=d)]",
            "    xs = [x for _ in forms for x in (graph.input(data[0], True), graph.rows(data, True))]",
            "    ys = [forms[i // 2](x) for i, x in enumerate(xs)]",
            "    sums = [vpps.sum(vpps.square(y)) for y in ys]",
            "    handle.gradients(graph, vpps.sum(sums[::2] + [vpps.sum(s) for s in sums[1::2]]), train=True)",
            "    found = [*map(handle.input_gradient, xs)], handle.forward(graph, ys)",
            "    return [[x.tobytes() for x in of] for of in found]",
            f"handle = vpps.Handle(vpps.Model(), vpps.SGD(lr=0.1), target={self.options})",
            "found = [run(handle, k) for k in range(len(steps))]",
            "cells = len(handle._engine.planner.cells.notes)",
            "steps = [tuple(c if abs(c) in (0, 1) else c * 1.25 for c in step) for step in steps]",
            "found += [run(handle, k) for k in range(len(steps))]",
            "made = len(handle._engine.planner.cells.notes) - cells",
            "handle.close()",
        ]

    def check(self) -> None:
        """Raise Finding if bits differ."""
        made = execute(lines := self.program())
        if made["made"]:
            raise Finding(f"other constants made {made['made']} programs", lines)
        for gradients, values in made["found"]:
            for bits in [values] if len(OPS) - 1 in self.ops else [gradients, values]:
                if bits[:2] != bits[2:4] or bits[:2] != bits[4:6]:
                    raise Finding("the bits of constants of bare ops and in cells differ", lines)
        with patch.object(trace, "_OPEN", ()):
            apart = execute(lines)
        if apart["found"] != made["found"]:
            raise Finding("bits differ from those of a program for each value", lines)


def draw(random: Random) -> Constants:
    """Draw a random case."""
    ops = tuple(random.randrange(len(OPS)) for _ in range(random.randint(1, 5)))
    steps = tuple(tuple(random.choice(VALUES) for _ in ops) for _ in range(3))
    return Constants(ops, steps, random.choice(OPTIONS), random.randrange(1000))
