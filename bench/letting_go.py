"""Memory of an open handle that compiles many programs: megabytes after a tenth of the steps and at the end.

    python bench/letting_go.py [--steps 100000] >> bench/results/cpu/DATE-letting_go.jsonl

The cases: `cells` defines a new cell with other equations for every batch; `static` changes a static keyword; `shapes`
has a different shape in every batch. `value` is the growth of the process in between; `before` is its size after the
first tenth, `closed` its size with the handle closed, and `ms` the processor time of a step.
"""

from __future__ import annotations

import time

import harness
import numpy as np

import vpps

WIDTH = 12


def measure(case: str, steps: int) -> None:
    model = vpps.Model(seed=1)
    U = model.parameter("U", (WIDTH, WIDTH))

    def made(x, k):
        """A different program for each k."""
        y = vpps.tanh(U @ x)
        for bit in range(17):
            y = y * x if k >> bit & 1 else y - x
        return y

    @vpps.cell
    def static(x, *, k):
        return made(x, k)

    begun, before = time.process_time(), 0.0
    passes = vpps.Passes(fusion=False)
    with vpps.Handle(model, vpps.SGD(lr=1e-6), target="cpu", vps=1, passes=passes) as handle:
        for k in range(steps):
            graph = vpps.Graph()
            x, mixed = graph.input(np.ones(WIDTH)), 7919 * k % 100_000  # so that large shapes come early
            if case == "cells":
                y = vpps.cell(lambda x, k=k: made(x, k))(x)
            elif case == "static":
                y = static(x, k=k)
            else:
                y = static(x, k=1) * vpps.sum(graph.input(np.ones((mixed % 317 + 1, mixed // 317 + 1))))
            handle.fb(graph, vpps.sum(y))
            if k == steps // 10:
                before = harness.megabytes()
        ms, grown = 1e3 * (time.process_time() - begun) / steps, harness.megabytes() - before
    more = {"before": round(before, 1), "closed": round(harness.megabytes(), 1), "ms": round(ms, 2), "steps": steps}
    harness.report("letting_go", case, [grown], "MB", **more)


if __name__ == "__main__":
    parser = harness.parser(__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    arguments = parser.parse_args()
    for case in ("cells", "static", "shapes"):
        measure(case, arguments.steps)
