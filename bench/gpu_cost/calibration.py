"""The model's errors for each form of instruction, and the correction factors.

Measurements are lines from gpu_timelines.py; `results/gpu_cost/calibration.jsonl` lists them with the model's times.
For each form, all executions in a launch but the first (or the only execution) are compared, by their median over
thread blocks. It is not known why forms take longer than in the model. To get new factors from another run on a GPU:
`python bench/gpu_cost --bench 1,16,64 --measured FILE`.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import harness
from table import Line, markdown, read, setting

from vpps.script.instructions import BY_NAME

if TYPE_CHECKING:
    from gpu_cost.executing import Executed

RESULTS = Path(__file__).resolve().parents[1] / "results" / "gpu_cost" / "calibration.jsonl"
WAIT, LAUNCH = "Wait", "launch"
TOLERANCE = 0.15
SHORTEST = 1.0  # us: shorter executions are mostly of blocks that own nothing, and say nothing about others


class Comparison(NamedTuple):
    """Modelled and measured microseconds for a form of instruction or the launch, on the bench's first batch."""

    batch: int
    form: str
    raw: float
    measured: float


class Calibration:
    """Corrects the model's times with measurements.

    Attributes:
        factors: factor for each measured form.
        skew: extra microseconds of a wait: blocks arrive one by one, and stores drain before a signal.
        ratios: smallest and largest ratio of measured to calibrated time, for each form and for launches.
    """

    def __init__(self, found: Iterable[Comparison], launches: Iterable[float] = ()) -> None:
        """Fit factors to measurements; `launches` are the launches' ratios of measured to calibrated time."""
        forms: dict[str, list[Comparison]] = defaultdict(list)
        for b in found:
            forms[b.form].append(b)
        waits = forms.get(WAIT, [])
        self.skew = statistics.fmean(b.measured - b.raw for b in waits) if waits else 0.0
        self.factors = {
            form: statistics.geometric_mean(b.measured / b.raw for b in group)
            for form, group in forms.items()
            if form != WAIT
        }
        ratios = {form: [b.measured / self.us(form, b.raw) for b in group] for form, group in forms.items()}
        ratios[LAUNCH] = list(launches)
        self.ratios = {form: (min(each), max(each)) for form, each in ratios.items() if each}

    def us(self, form: str, raw: float) -> float:
        """Corrected time of an instruction, in microseconds."""
        return raw + self.skew if form == WAIT else raw * self.factors.get(form, 1.0)

    def remark(self, form: str) -> str:
        """A warning for all figures that belong to a form; "" if the form is within TOLERANCE."""
        low, high = self.ratios.get(form, (0.0, 0.0))
        if not high:
            return "not measured"
        is_off = max(high - 1, 1 - low) > TOLERANCE
        return f"measured: {low:.2f} to {high:.2f} times this" if is_off else ""


@cache
def calibration() -> Calibration:
    """The Calibration from RESULTS."""
    lines = read([RESULTS], ["gpu_cost"]) if RESULTS.exists() else []
    found = [Comparison(line["batch"], line["form"], line["value"], line["measured"]) for line in lines]
    launches = [line["measured"] / line["calibrated"] for line in lines if line["form"] == LAUNCH]
    return Calibration([b for b in found if b.form != LAUNCH], launches)


def typical(executions: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Median for each form without its first execution, from (form, microseconds) in launch order."""
    found: dict[str, list[float]] = defaultdict(list)
    for form, us in executions:
        found[form].append(us)
    return {form: statistics.median(each[1:] or each) for form, each in found.items()}


def measurements(path: Path) -> dict[int, dict[str, float]]:
    """Microseconds for each form and for the launch, by batch size, from lines of gpu_timelines.py. Current lines have
    a table of instructions; lines of 26 November 2026 are for one form each."""
    found: dict[int, dict[str, float]] = defaultdict(dict)
    for line in read([path], ["gpu_timelines"]):
        of_batch = found[int(setting(line, "batch"))]
        form = LAUNCH if "table" in line else line["case"].partition(",")[0]
        of_batch[form] = line.get("later") or line["value"]
        if "table" in line:
            name, median = (line["columns"].index(column) for column in ("name", "median"))
            of_batch |= typical((BY_NAME[row[name]].form, row[median]) for row in line["table"])
    return found


def compare(
    runs: Mapping[int, Sequence[Sequence[Executed]]],
    launches: Mapping[int, Sequence[Executed]],
    measured: Mapping[int, Mapping[str, float]],
) -> str:
    """Report lines that compare the model with measurements, and return a table.

    Args:
        runs: executed instructions of each thread block, by batch size.
        launches: executed instructions that the launch waits for, by batch size.
        measured: microseconds by form and batch size, from `measurements`.
    """
    found = []
    for batch, blocks in runs.items():
        by_block = [typical((e.form, e.raw) for e in run) for run in blocks]
        for form, us in measured[batch].items():
            if form in by_block[0] and us >= SHORTEST:
                found.append(Comparison(batch, form, statistics.median(each[form] for each in by_block), us))
    fitted = Calibration(found)
    for batch, launch in launches.items():
        found.append(Comparison(batch, LAUNCH, sum(e.raw for e in launch), measured[batch][LAUNCH]))
    head = ["form", "batch", "model, us", "calibrated", "measured", "measured / calibrated", "off by more than 15 %"]
    rows = [head]
    for b in sorted(found, key=lambda b: (b.form == LAUNCH, b.form, b.batch)):
        us = fitted.us(b.form, b.raw)
        if b.form == LAUNCH:
            us = sum(fitted.us(e.form, e.raw) for e in launches[b.batch])
        ratio = b.measured / us
        is_off = abs(ratio - 1) > TOLERANCE
        beside: Line = {"calibrated": harness.median([us]), "measured": b.measured, "off": is_off}
        harness.report("gpu_cost", f"{b.form}, batch={b.batch}", [b.raw], "us", form=b.form, batch=b.batch, **beside)
        figures = (f"{value:.2f}" for value in (b.raw, us, b.measured, ratio))
        rows.append([b.form, str(b.batch), *figures, "yes" if is_off else ""])
    factors = ", ".join(f"{form} {factor:.2f}" for form, factor in sorted(fitted.factors.items()))
    return f"{markdown(rows)}\n\nFactors: {factors}. A wait takes {fitted.skew:.2f} us more."
