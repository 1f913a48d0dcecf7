"""What `vpps-profile` prints: tables of candidates, and the same as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from vpps.cli.console import table_of
from vpps.engine.configuration import Configuration
from vpps.kernel.resources import Resources
from vpps.profiling.search import Row, SearchOutcome
from vpps.text import counted
from vpps.tuning.candidates import GAIN
from vpps.tuning.compiling import Compiled

WINNER = "->"
_LEFT = "configuration was", "configurations were"
NOISY = 0.25
"""How much times of one batch may vary (`SearchOutcome.variation`) before they tell too little to be kept unasked."""


def measured_table(outcome: SearchOutcome) -> Table:
    """The winner, marked, then the others by what decides: `Row.ratio`; those that do not run last."""
    rows = sorted(outcome.rows, key=lambda row: (row is not outcome.best, -row.ratio, row.measured.seconds))
    base = outcome.rows[0].measured.configuration
    on_chip = any(_onchip(row) for row in rows)
    compiled = any(row.measured.resources for row in rows)
    headings = ["", "configuration", "ms/batch", "quartiles", "x default"]
    headings += ["registers", "spilled"] * compiled + ["barriers"] + ["weights"] * on_chip
    cells = (_measured_cells(row, base, row is outcome.best, compiled, on_chip) for row in rows)
    return table_of(headings, cells, left=("",), folded=("configuration", "weights"))


def _measured_cells(row: Row, base: Configuration, wins: bool, compiled: bool, on_chip: bool) -> list[str]:
    m = row.measured
    cells = [WINNER if wins else "", m.configuration.describe(base)]
    if m.times is None:
        return [*cells, "-", "", "-", *[""] * (2 * compiled), "", *([m.reason] if on_chip else [])]
    cells += [f"{1e3 * m.seconds:.3f}", f"±{5e2 * m.spread:.3f}", f"{row.ratio:.2f}"]
    if compiled:
        cells += _registers(m.resources)
    return [*cells, f"{m.barriers:.0f}", *([tiers(m)] if on_chip else [])]


def notes(outcome: SearchOutcome) -> list[str]:
    """Sentences below the table."""
    found, default = [], outcome.rows[0].measured
    if sum(row.ratio > 0 for row in outcome.rows) > 1:
        found.append(
            f"x default: median of the batch-by-batch ratios. A winner has {GAIN:.2f} or more, and was faster in three "
            "turns of four."
        )
    if not any(map(_onchip, outcome.rows)):  # else the table has the reasons
        failed = [row.measured for row in outcome.rows if row.measured.reason]
        found += [f"{m.configuration.describe(default.configuration)}: {m.reason}" for m in failed]
    if outcome.axes:
        found.append(
            f"The {outcome.combinations} combinations of all axes are too many: they were searched one after the other "
            f"({', '.join(outcome.axes)}), each with the best of those before it."
        )
    return found + left_out_notes(outcome.repeated, outcome.left_out)


def why_unsteady(outcome: SearchOutcome, rounds: int) -> str:
    """Why the times tell too little for the winner to be kept unasked; "" where they do."""
    if rounds == 1:
        return "one turn does not tell how much times vary: give it more --rounds"
    if outcome.variation > NOISY:
        return (
            f"times of one and the same batch vary by {outcome.variation:.0%}, as other programs run on this machine: "
            "repeat it on a quiet one, or with more --rounds"
        )
    return ""


def left_out_notes(repeated: int, left_out: int) -> list[str]:
    """Sentences on what is not in a table."""
    found = []
    if repeated:
        found.append(f"{counted(repeated, *_LEFT)} left out that would give the same kernel as another one.")
    if left_out:
        found.append(f"{counted(left_out, *_LEFT)} left out, beyond --candidates.")
    return found


def compiled_table(rows: Sequence[Compiled], base: Configuration) -> Table:
    """What kernels take of an architecture."""
    numbers = ("registers", "spilled", "stack", "shared", "code", "seconds", "barriers")
    cells = ([row.configuration.describe(base), *_compiled_cells(row)] for row in rows)
    return table_of(("configuration", *numbers, "weights"), cells, folded=("configuration", "weights"))


def _compiled_cells(row: Compiled) -> list[str]:
    if row.reason:
        return [*["-"] * 7, row.reason]
    found = row.resources
    cells = ["", "", "", ""]
    if found is not None:
        shared = found.shared_bytes + (row.arrangement.chip.shared_bytes if row.arrangement is not None else 0)
        cells = [str(found.stack), str(shared), str(found.code_bytes), f"{found.compile_seconds:.1f}"]
    return [*_registers(found), *cells, str(row.barriers), tiers(row)]


def tiers(kernel: Compiled) -> str:
    """Where each matrix is: "U, U^T registers; Wo L2"."""
    if kernel.arrangement is None or kernel.arrangement.onchip is None:
        return ""
    by_tier: dict[str, list[str]] = {}
    for held in kernel.arrangement.onchip.held:
        by_tier.setdefault(held.tier, []).append(held.name)
    text = "; ".join(f"{', '.join(names)} {tier}" for tier, names in by_tier.items())
    return f"{text} (stepped down {kernel.stepped_down}x)" if kernel.stepped_down else text


def measured_json(outcome: SearchOutcome) -> dict[str, Any]:
    """All that the table says, and every time."""
    return {
        "combinations": outcome.combinations,
        "one_after_the_other": list(outcome.axes),
        "repeated": outcome.repeated,
        "left_out": outcome.left_out,
        "best": outcome.best.measured.configuration.as_json(),
        "candidates": [
            {
                **_kernel_json(row.measured, outcome.rows[0].measured.configuration),
                "best": row is outcome.best,
                **_times(row),
            }
            for row in outcome.rows
        ],
    }


def compiled_json(rows: Iterable[Compiled], base: Configuration) -> list[dict[str, Any]]:
    """All that the table says."""
    return [
        {
            **_kernel_json(row, base),
            "barriers": None if row.reason else row.barriers,
            "shared_bytes": None if row.arrangement is None else row.arrangement.chip.shared_bytes,
        }
        for row in rows
    ]


def _times(row: Row) -> dict[str, Any]:
    m = row.measured
    if m.times is None:
        return dict.fromkeys(("seconds", "spread", "variation", "ratio", "times", "barriers", "vps")) | {"times": []}
    return {
        "seconds": m.seconds, "spread": m.spread, "variation": m.variation, "ratio": row.ratio,
        "times": m.times.tolist(), "barriers": m.barriers, "vps": m.vps,
    }  # fmt: skip


def _kernel_json(kernel: Compiled, base: Configuration) -> dict[str, Any]:
    onchip = None if kernel.arrangement is None else kernel.arrangement.onchip
    return {
        "configuration": kernel.configuration.as_json(),
        "description": kernel.configuration.describe(base),
        "tiers": None if onchip is None else {held.name: held.tier for held in onchip.held},
        "tile": None if onchip is None else onchip.chip.tile,
        "gradients": None if onchip is None else onchip.gradients,
        "stepped_down": kernel.stepped_down,
        "resources": None if kernel.resources is None else asdict(kernel.resources),
        "reason": kernel.reason or None,
    }


def _onchip(row: Row) -> bool:
    return row.measured.arrangement is not None and row.measured.arrangement.onchip is not None


def _registers(found: Resources | None) -> list[str]:
    return ["", ""] if found is None else [str(found.registers), str(found.spill_stores + found.spill_loads)]
