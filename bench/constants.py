"""Measures the cost of constants that change at every step: processor time per step. The peer has fixed constants.

    python bench/constants.py --steps 100000 >> bench/results/cpu/DATE-constants.jsonl

Each step trains a chain of `--calls` calls of clamp, leaky_relu and dropout, whose bounds, slope and rate change. The
calls are bare ops (`ops`), are in a cell that is redefined for each step (`closure`), or are keyword arguments of
one cell (`keyword`). Both sides take turns, a hundredth of the steps at a time. `grown` is the growth of the process
since the first turn, in megabytes.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import harness
import numpy as np

import vpps

FORMS = ("ops", "closure", "keyword")


class Side:
    """A model trained with constants that change or stay fixed."""

    def __init__(self, form: str, hidden: int, calls: int, changing: bool) -> None:
        model = vpps.Model(seed=1)
        U = model.parameter("U", (hidden, hidden))
        self.form, self.calls, self.changing, self.x = form, calls, changing, np.ones(hidden)
        self.numbers = itertools.count()

        def step(h: Any, *, t: float, rate: float) -> Any:
            return vpps.dropout(vpps.clamp(vpps.leaky_relu(U @ h, t / 9), -t, t), rate)

        self.step: Any = step
        self.cell: Any = vpps.cell(step)
        self.handle = vpps.Handle(model, vpps.SGD(lr=1e-3), target="cpu", vps=1)

    def run(self, steps: int) -> float:
        """Return the microseconds of processor time per step."""
        start = time.process_time()
        for _ in range(steps):
            t = 1 - 1e-6 * (1 + next(self.numbers) * self.changing)
            graph, statics, step = vpps.Graph(), {"t": t, "rate": t / 2}, self.step
            if self.form == "closure":
                step, statics = vpps.cell(lambda h, made=statics: self.step(h, **made)), {}
            elif self.form == "keyword":
                step = self.cell
            h = graph.input(self.x)
            for _ in range(self.calls):
                h = step(h, **statics)
            self.handle.fb(graph, vpps.sum(h))
        self.handle.sync_get_latest_loss()
        return 1e6 * (time.process_time() - start) / steps


def main() -> None:
    """Prints a line for each form."""
    parser = harness.parser(__doc__, hidden=64)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--calls", type=int, default=16)
    options = parser.parse_args()
    turn = max(1, options.steps // 100)
    for form in FORMS:
        sides = [Side(form, options.hidden, options.calls, changing) for changing in (True, False)]
        for side in sides:
            side.run(max(600, turn))
        before = harness.megabytes()
        ours, theirs = zip(*([side.run(turn) for side in sides] for _ in range(100)), strict=True)
        case, peer = f"{form} hidden={options.hidden} calls={options.calls}", ("fixed", theirs)
        grown = round(harness.megabytes() - before, 1)
        harness.report("constants", case, ours, "us", peer, higher_is_better=False, grown=grown)


if __name__ == "__main__":
    main()
