"""What code costs that runs once: timelines of equal launches of the Tree-LSTM, by form of instruction.

    python bench/gpu_timelines.py >> results/gpu/DATE-timelines.jsonl

The same mini-batch is trained on again and again, so that launches differ in nothing but what the caches hold. For each
form (Matvec, Tail, Update, ...) a line: how often a virtual processor executes one, how long its first one in a launch
takes (`value`, median over virtual processors and launches), and how long the later ones take (`later`); `very_first`
is that of the first launch of all, when nothing was in any cache. Where first ones take longer than later ones of the
same form, code (or script) was fetched, or they were larger: `once` is that difference over all forms, per launch, and
so no more than what code that runs once costs. Recording itself costs time: a store at every instruction.
"""

from __future__ import annotations

import statistics
from typing import Any

import harness
import numpy as np
from datasets import trees_file
from models import VppsTreeLstm
from on_gpu import about
from treelstm import LEARNING_RATE, initial_weights
from trees import read_trees

from vpps.engine.timeline import Timeline

BENCH = "gpu_timelines"
BARRIERS = ("Signal", "Wait", "Barrier")  # their time is that of others


def by_form(timeline: Timeline) -> dict[str, tuple[float, float, float]]:
    """Executions of a form per virtual processor; microseconds of the first one and of later ones (NaN: there are
    none), medians over virtual processors."""
    timeline.check_complete()
    records, forms = timeline.records, timeline.forms
    took = 1e-3 * (records["end"] - records["start"])
    found = {}
    for form in np.unique(forms).tolist():
        own = forms == form
        vps, first = np.unique(records["vp"][own], return_index=True)
        later = np.delete(took[own], first)
        found[form] = (
            len(took[own]) / len(vps), float(np.median(took[own][first])),
            float(np.median(later)) if len(later) else float("nan"),
        )  # fmt: skip
    return found


def main() -> None:
    """Record launches of every batch size."""
    parser = harness.parser(
        __doc__, trees=None, batch_sizes=[1, 16, 64], device="cuda", hidden=256, embedding=256, vps=None
    )
    parser.add_argument("--launches", type=int, default=8, help="that are recorded, two at least")
    options = parser.parse_args()
    options.trees = trees_file(options.trees)
    trees, words = read_trees(options.trees, max(options.batch_sizes))
    weights = initial_weights(words, options.embedding, options.hidden)
    extra: dict[str, Any] = about(["vpps"], options.device, options.trees)
    for size in options.batch_sizes:
        net = VppsTreeLstm(weights, "sgd", LEARNING_RATE["sgd"], options.vps, options.device, timeline=True)
        batch = [net.prepare(tree) for tree in trees[:size]]
        timelines = []
        for _ in range(options.launches):
            net.step(batch)
            net.loss()
            timelines.append(net.handle.timeline())
        report(f"batch={size} hidden={options.hidden} vps={net.handle.vps}", timelines, extra)
        net.close()


def report(case: str, timelines: list[Timeline], extra: dict[str, Any]) -> None:
    """A line per form and one for whole launches. Of the launches but the first, each is like the one before it."""
    very_first, *others = [by_form(timeline) for timeline in timelines]
    once = 0.0
    for form, (executed, first, _) in very_first.items():
        firsts = [found[form][1] for found in others]
        later = statistics.median(found[form][2] for found in others)
        known = later == later and form not in BARRIERS
        once += max(0.0, statistics.median(firsts) - later) if known else 0.0
        harness.report(
            BENCH, f"{form}, first of a launch, {case}", firsts, "us", executed=round(executed, 1),
            later=round(later, 3) if later == later else None, very_first=round(first, 3), **extra,
        )  # fmt: skip
    durations = [1e6 * timeline.duration for timeline in timelines]
    harness.report(
        BENCH, f"launch, {case}", durations[1:], "us", very_first=round(durations[0], 1), once=round(once, 1), **extra
    )


if __name__ == "__main__":
    main()
