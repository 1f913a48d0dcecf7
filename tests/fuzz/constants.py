"""Constants that change from step to step: the bits of the same ops in cells, and only the first step's programs."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.fuzz.program import Found
from vpps.graph import graph as module

OPS = (
    "vpps.clamp(y, low={c})", "vpps.clamp(y, high={c})", "vpps.leaky_relu(y, {c})", "vpps.elu(y, {c})", "y + {c}",
    "y * {c}", "vpps.where(y > {c}, y, {c})", "vpps.where(y <= {c}, {c}, y)", "y - vpps.eq(y, {c})",
)  # fmt: skip
VALUES = (0.0, -0.0, 1e-45, -1e-30, 0.3, -0.7, 1.0, 3.5)


@dataclass(frozen=True)
class Constants:
    """Ops one after the other, and their constants at each step."""

    ops: tuple[int, ...]
    steps: tuple[tuple[float, ...], ...]
    seed: int

    def program(self) -> list[str]:
        """Both forms of each step."""
        lines = ["import numpy as np, vpps", f"data = np.random.default_rng({self.seed}).normal(size=(3, 5))"]
        lines += ["handle = vpps.Handle(vpps.Model(), vpps.SGD(lr=0.1), target='cpu', vps=1)"]
        for k, values in enumerate(self.steps):
            lines += [f"def f{k}(y):"]
            lines += [f"    y = {OPS[op].format(c=c)}" for op, c in zip(self.ops, values, strict=True)]
            lines += ["    return y", "graph = vpps.Graph()"]
            lines += ["xs = [x for _ in range(2) for x in (graph.input(data[0], True), graph.rows(data, True))]"]
            lines += [f"ys = [g(x) for g, x in zip(2 * [f{k}] + 2 * [vpps.cell(f{k})], xs)]"]
            lines += ["handle.gradients(graph, vpps.sum([vpps.sum(vpps.square(ys[i])) for i in (0, 2)]) +"]
            lines += ["    vpps.sum([vpps.sum(vpps.sum(vpps.square(ys[i]))) for i in (1, 3)]))"]
            lines += ["found = [[x.tobytes() for x in map(handle.input_gradient, xs[i:i + 2])] for i in (0, 2)]"]
            lines += ["assert found[0] == found[1]"]
            lines += ["found = [[x.tobytes() for x in handle.forward(graph, ys[i:i + 2])] for i in (0, 2)]"]
            lines += ["assert found[0] == found[1]"]
        return [*lines, "handle.close()"]

    def check(self) -> None:
        """Raises Found."""
        lines, steps = self.program(), len(self.steps)
        first = Constants(self.ops, self.steps[:1], self.seed).program()
        exec("\n".join(first), {})
        before = len(module._bare_programs)
        try:
            exec("\n".join(lines), {})
        except AssertionError:
            raise Found("bits of constants as data and in a cell differ", lines) from None
        if len(module._bare_programs) > before:
            raise Found(f"other constants made programs in {steps} steps", lines)


def draw(random: Random) -> Constants:
    """A case."""
    ops = tuple(random.randrange(len(OPS)) for _ in range(random.randint(1, 5)))
    steps = tuple(tuple(random.choice(VALUES) for _ in ops) for _ in range(3))
    return Constants(ops, steps, random.randrange(1000))
