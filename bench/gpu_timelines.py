"""Times every instruction of a Tree-LSTM launch; the results calibrate bench/gpu_cost.

    python bench/gpu_timelines.py >> results/gpu/DATE-timelines.jsonl

A recording kernel trains on one mini-batch again and again; the first launch is left out. There is a line per batch
size: `value` is the whole launch's median time in microseconds. `table` has a row for every instruction of the script,
in order, and `columns` names the entries of a row:

    form        phase and kind, as named in gpu_cost, such as "forward: product and tail"
    name        of the instruction
    vectors, width, columns     of its result and, if there is one, of its matrix
    stage       of the graph; -1: none
    n           number of measurements: blocks times launches
    median, p95 microseconds, over all measurements
    shortest, longest   over the blocks in a launch; the median over launches
    block       the block that takes longest, by its own median

`forms` has the number of rows of each form, and the sums of their `median` and `longest`. A wait ends when the last
block arrives: `shortest` is that block's time, and the rest is its lateness. Recording also costs time: a store at
every instruction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import harness
import numpy as np
from datasets import trees_file
from gpu_cost.executing import kind_of
from models import VppsTreeLstm
from on_gpu import about
from treelstm import LEARNING_RATE, initial_weights
from trees import read_trees

import vpps
from vpps.engine.timeline import Timeline
from vpps.script.disassemble import decode

BENCH = "gpu_timelines"
COLUMNS = "form name vectors width columns stage n median p95 shortest longest block".split()


def measured(timelines: Sequence[Timeline]) -> np.ndarray[Any, Any]:
    """Return the microseconds by launch, instruction and virtual processor; NaN if a processor does not execute it.

    Exits if the launches have executed different instructions.
    """
    first = timelines[0]
    found = np.full((len(timelines), len(first.activities), first.n_vps), np.nan)
    for launch, timeline in zip(found, timelines, strict=True):
        timeline.check_complete()
        if [a.position for a in timeline.activities] != [a.position for a in first.activities]:
            raise SystemExit("launches of one mini-batch have different scripts: they cannot be put into one table")
        records = timeline.records
        launch[timeline.activity_of, records["vp"]] = 1e-3 * (records["end"] - records["start"])
    return found


def rows(timelines: Sequence[Timeline]) -> Iterator[list[Any]]:
    """Yield the rows of the table; see COLUMNS."""
    took = measured(timelines)
    by_vp = np.median(took, 0)
    shortest, longest = (np.median(extreme(took, 2), 0) for extreme in (np.nanmin, np.nanmax))
    plan = timelines[0].plan
    for k, a in enumerate(timelines[0].activities):
        d = decode(plan.script, a.position)
        values = took[:, k][~np.isnan(took[:, k])]
        phase = "load" if a.kind == "load" else a.phase
        figures = np.median(values), np.percentile(values, 95), shortest[k], longest[k]
        yield [
            f"{phase}: {kind_of(d)}", a.instruction, d.n, d.width, d.fields.get("columns"), a.stage, len(values),
            *(round(float(us), 3) for us in figures), int(np.nanargmax(by_vp[k])),
        ]  # fmt: skip


def by_form(table: Sequence[Sequence[Any]]) -> dict[str, list[float]]:
    """Return the number of rows of each form, and the sums of their `median` and `longest`."""
    sums: dict[str, Any] = defaultdict(lambda: np.zeros(3))
    for row in table:
        sums[row[0]] += 1, row[COLUMNS.index("median")], row[COLUMNS.index("longest")]
    return {form: [round(value, 2) for value in found.tolist()] for form, found in sums.items()}


def main() -> None:
    """Record launches of every batch size."""
    parser = harness.parser(
        __doc__, trees=None, batch_sizes=[1, 16, 64, 128], device="cuda", hidden=256, embedding=256, vps=None
    )
    parser.add_argument("--groups", type=int, help="groups of blocks, each with its part of the batch")
    parser.add_argument("--launches", type=int, default=8, help="launches to record, at least two")
    options = parser.parse_args()
    options.trees = trees_file(options.trees)
    trees, words = read_trees(options.trees, max(options.batch_sizes))
    weights = initial_weights(words, options.embedding, options.hidden)
    extra: dict[str, Any] = about(["vpps"], options.device, options.trees)
    extra |= {"groups": options.groups}
    onchip = vpps.ChipOptions(groups=options.groups) if options.device != "cpu" else None
    vps, target = options.vps, options.device
    for size in options.batch_sizes:
        net = VppsTreeLstm(weights, "sgd", LEARNING_RATE["sgd"], vps, target, timeline=True, onchip=onchip)
        batch = [net.prepare(tree) for tree in trees[:size]]
        timelines = []
        for _ in range(options.launches):
            net.step(batch)
            net.loss()
            timelines.append(net.handle.timeline())
        table = list(rows(timelines[1:]))
        harness.report(
            BENCH, f"batch={size} hidden={options.hidden} vps={net.handle.vps}",
            [1e6 * timeline.duration for timeline in timelines[1:]], "us", forms=by_form(table), columns=COLUMNS,
            table=table, **extra,
        )  # fmt: skip
        net.close()


if __name__ == "__main__":
    main()
