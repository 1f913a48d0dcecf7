"""Reports lines and tables of a step: its phases, levels, products, regions, and source lines of the templates."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import harness
import numpy as np
from table import markdown, three_digits

from gpu_cost.calibration import LAUNCH, calibration
from gpu_cost.cases import Case
from gpu_cost.executing import Executed, ends_with_wait
from gpu_cost.machine import WARPS
from gpu_cost.regions import region_of
from gpu_cost.timing import Constants, issue_bound

BENCH = "gpu_cost"
SHOWN = (1, 2, 3, 4, 8, 16, 64)  # numbers of vectors
KINDS = ("FFMA", "HMMA", "LDS", "STS", "SHFL", "FADD", "MOVM", "F2FP")  # families of machine instructions, for products


@dataclass
class Sum:
    """Totals over several script instructions."""

    us: float = 0.0
    raw: float = 0.0
    bound: float = 0.0
    warp_instructions: float = 0.0
    scripted: int = 0
    barriers: int = 0
    block_barriers: int = 0
    trips: int = 0
    forms: set[str] = field(default_factory=set)

    def add(self, e: Executed, c: Constants) -> None:
        """Add an instruction."""
        self.us += e.us
        self.raw += e.raw
        self.forms.add(e.form)
        self.bound += issue_bound(e.spent, c) / c.clock_ghz / 1e3
        self.warp_instructions += sum(e.spent.issued.values()) / WARPS
        self.scripted += e.decoded is not None
        self.barriers += ends_with_wait(e)
        self.block_barriers += e.spent.block_barriers
        self.trips += e.spent.trips

    @property
    def remark(self) -> str:
        """Warning about the model's error, if all instructions have the same form."""
        return calibration().remark(*self.forms) if len(self.forms) == 1 else ""

    def line(self) -> dict[str, object]:
        """Fields for a JSON line."""
        return {
            "raw_us": round(self.raw, 2), "remark": self.remark, "bound_us": round(self.bound, 2),
            "instructions_per_warp": round(self.warp_instructions),
            "script_instructions": self.scripted, "barriers": self.barriers, "block_barriers": self.block_barriers,
            "l2_trips": self.trips,
        }  # fmt: skip


def sums(done: Sequence[Executed], c: Constants, key: Any) -> dict[Any, Sum]:
    """Totals by key, in order of first appearance."""
    found: dict[Any, Sum] = {}
    for e in done:
        found.setdefault(key(e), Sum()).add(e, c)
    return found


def report(case: Case, done: Sequence[Executed], c: Constants, top: int) -> None:
    """Report lines and tables of a case."""
    resources = case.kernel.resources
    assert resources is not None
    total = sums(done, c, lambda e: "step")["step"]
    phases = sums(done, c, lambda e: e.phase)
    touched = len({pc * 16 // 128 for e in done for pc in e.spent.by_pc}) * 128
    extra = {
        "code_bytes": resources.code_bytes, "executed_code_bytes": touched, "registers": resources.registers,
        "examples_per_s": round(case.examples / total.us * 1e6), "model": "estimate",
    }  # fmt: skip
    harness.report(BENCH, f"{case.name} step", [total.us], "us", **total.line(), **extra)
    for phase, s in phases.items():
        harness.report(BENCH, f"{case.name} {phase}", [s.us], "us", **s.line())
    kinds = sums(done, c, lambda e: (e.phase, e.kind))
    for (phase, kind), s in kinds.items():
        harness.report(BENCH, f"{case.name} {phase}: {kind}", [s.us], "us", **s.line())
    say(f"\n## {case.name}: {total.us:.0f} us, {case.examples / total.us * 1e6:,.0f} examples/s (a model's estimate)\n")
    low, high = calibration().ratios.get(LAUNCH, (0.0, 0.0))
    say(f"Calibrated; of launches {low:.2f} to {high:.2f} times as much was measured. raw: as the model says.\n")
    say(
        f"{total.barriers} barriers, {resources.code_bytes / 1024:.0f} KiB of code, of which {touched / 1024:.0f} KiB "
        f"are executed, {resources.registers} registers\n"
    )
    head = ["", "us", "raw", "bound", "instructions/warp", "of the script", "barriers", "block's", "L2 trips", "remark"]
    rows = [[name, *_cells(s)] for name, s in [("step", total), *phases.items()]]
    say(markdown([head, *rows]) + "\n")
    ranked = sorted(kinds.items(), key=lambda item: -item[1].us)[:top]
    say(markdown([head, *([f"{phase}: {kind}", *_cells(s)] for (phase, kind), s in ranked)]) + "\n")
    _report_levels(case, done)
    _report_products(case, done)
    _report_regions(case, done, c, top)
    _report_lines(case, done, c, top)


def _cells(s: Sum) -> list[str]:
    return [
        f"{s.us:.2f}", f"{s.raw:.2f}", f"{s.bound:.2f}", three_digits(s.warp_instructions), str(s.scripted),
        str(s.barriers), str(s.block_barriers), str(s.trips), s.remark,
    ]  # fmt: skip


def _report_levels(case: Case, done: Sequence[Executed]) -> None:
    """Report the mean times of products, tails and barriers in forward and backward, by number of vertices."""
    forms: dict[str, str] = {}
    found: dict[tuple[str, int], dict[str, list[float]]] = {}
    n = 0
    for e in done:
        if (
            e.phase in ("forward", "backward")
            and e.kind in ("product", "product and tail", "tail", "signal, wait")
            and e.decoded is not None
        ):
            n = e.decoded.n if e.kind.startswith("product") or (e.kind == "tail" and e.phase == "backward") else n
            kind = e.decoded.instruction.name if e.kind == "signal, wait" else e.kind
            found.setdefault((e.phase, n), {}).setdefault(kind, []).append(e.us)
            forms[kind] = e.form
    head = ["level", "product", "product and tail", "tail", "barrier", "sum"]
    remarks = {kind: remark for kind, form in forms.items() if (remark := calibration().remark(form))}
    rows = []
    for (phase, count), kinds in sorted(found.items()):
        means = [float(np.mean(kinds[k])) if k in kinds else 0.0 for k in head[1:-1]]
        rows.append([f"{phase}, n = {count}", *(f"{m:.2f}" for m in means), f"{sum(means):.2f}"])
        values = dict(zip(head[1:-1], (round(m, 3) for m in means), strict=True))
        harness.report(BENCH, f"{case.name} {phase} level n={count}", [sum(means)], "us", **values, remarks=remarks)
    shown = [f"{kind} ({remarks[kind]})" if kind in remarks else kind for kind in head]
    say(markdown([shown, *rows]) + "\n")


MULTIPLIES = {"Lane::multiply", "slot_product"}


def products(case: Case, done: Sequence[Executed]) -> dict[str, dict[str, float]]:
    """Instructions per warp for each product, by shape and number of vectors. "all" excludes the tail; keys after
    "multiplying" divide its count by kind."""
    places = [set(case.code.places(pc)) for pc in range(len(case.code.instructions))]
    found: dict[str, dict[str, float]] = {}
    for e in done:
        d = e.decoded
        if not e.kind.startswith("product") or d is None or "matrix" not in d.fields or d.n not in SHOWN:
            continue
        if (name := f"{d.width} x {d.fields['columns']}, n = {d.n}") in found:
            continue
        counts: Counter[str] = Counter()
        for pc, issued in e.spent.by_pc.items():
            if "chained_tail" not in places[pc]:
                counts["all"] += issued
            if "held_matvec" in places[pc] and places[pc] & MULTIPLIES:
                family = case.code.instructions[pc].family
                counts["multiplying"] += issued
                counts[family if family in KINDS else "rest"] += issued
        found[name] = {kind: counts[kind] / WARPS for kind in ("all", "multiplying", *KINDS, "rest")}
    return found


def _report_products(case: Case, done: Sequence[Executed]) -> None:
    found = products(case, done)
    for name, counts in found.items():
        shown = {kind: round(count, 1) for kind, count in counts.items()}
        harness.report(BENCH, f"{case.name} product {name}", [counts["all"]], "instructions/warp", **shown)
    head = ["product, instructions/warp", "all", "multiplying", *KINDS, "rest"]
    say(markdown([head, *([name, *map(three_digits, counts.values())] for name, counts in found.items())]) + "\n")


def _report_regions(case: Case, done: Sequence[Executed], c: Constants, top: int) -> None:
    """Report the time by region; every cycle is counted once."""
    total: Counter[str] = Counter()
    reasons: dict[str, Counter[str]] = {}
    phases: dict[str, Counter[str]] = {}
    known: dict[int, str] = {}
    for e in done:
        for (pc, reason), cycles in e.spent.by.items():
            what = known.setdefault(pc, region_of(case.code, pc))
            total[what] += cycles
            reasons.setdefault(what, Counter())[reason] += cycles
            phases.setdefault(what, Counter())[e.phase] += cycles
    rows = []
    for what, cycles in total.most_common(2 * top):
        us = cycles / c.clock_ghz / 1e3
        why = ", ".join(f"{reason} {v / cycles:.0%}" for reason, v in reasons[what].most_common(3))
        where = {phase: round(v / c.clock_ghz / 1e3, 2) for phase, v in phases[what].items()}
        rows.append([f"{us:.2f}", what, why, ", ".join(f"{phase} {v:.1f}" for phase, v in where.items())])
        harness.report(BENCH, f"{case.name} region {what}", [us], "us, raw", why=why, **where)
    say(markdown([["us, raw", "where time goes", "as", "phases"], *rows]) + "\n")


def _report_lines(case: Case, done: Sequence[Executed], c: Constants, top: int) -> None:
    """Report the template lines with the most time, including callees, along the critical warps."""
    inclusive: Counter[int] = Counter()
    reasons: dict[int, Counter[str]] = {}
    for e in done:
        for (pc, reason), cycles in e.spent.by.items():
            for line in case.code.instructions[pc].lines if pc >= 0 else ():
                inclusive[line] += cycles
                reasons.setdefault(line, Counter())[reason] += cycles
    kernel = case.code.functions.index("vpps_kernel")
    rows = []
    for line, cycles in inclusive.most_common():
        function = case.code.functions[line]
        if len(rows) == 2 * top:
            break
        if line >= kernel or not function:
            continue
        why = ", ".join(f"{reason} {v / cycles:.0%}" for reason, v in reasons[line].most_common(3))
        us = cycles / c.clock_ghz / 1e3
        text = case.code.source[line - 1].strip()[:70].replace("|", "\\|")
        rows.append([f"{us:.2f}", function, f"`{text}`", why])
        harness.report(BENCH, f"{case.name} line {function}: {text}", [us], "us, raw", why=why)
    say(markdown([["us, raw", "function", "line, and what it calls", "goes to"], *rows]) + "\n")


def say(text: str) -> None:
    """Print a table to standard error."""
    print(text, file=sys.stderr, flush=True)
