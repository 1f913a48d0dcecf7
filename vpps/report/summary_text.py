"""A summary of launches as text."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from vpps.targets import TARGETS
from vpps.text import counted, table

if TYPE_CHECKING:
    from vpps.report.summary import Summary

KINDS = ("compute", "load", "update", "waiting")  # of the time of a virtual processor
MOST_CELLS = 5

WIDTH = 110
MOST_VPS = 16  # that are listed one by one
MOST_PATH = 8
NAMES, NAMES_OF_CELLS = 72, 32  # columns


def as_text(s: Summary) -> str:
    """Plain text of 110 columns."""
    each = s.seconds / s.launches
    vps = counted(len(s.vps), "virtual processor")
    head = (
        f"{counted(s.launches, 'launch', 'launches')} on {s.target}, {vps}: {_ms(each)} each, "
        f"{counted(round(s.barriers / s.launches), 'barrier')}, "
        f"{counted(round(s.instructions / s.launches), 'instruction')} executed"
    )
    if TARGETS[s.target].is_emulated:
        head += "\n(times of the emulator, whose threads take turns: they say what is done, not how long a GPU takes)"
    parts = [head, _shares(s), _by_vp(s), _path(s), _cells(s), _advice(s)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _cut(name: str, columns: int) -> str:
    return name if len(name) <= columns else name[: columns - 1] + "…"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"


def _shares(s: Summary) -> str:
    shares = "  ".join(f"{kind} {100 * share:.1f} %" for kind, share in s.shares.items())
    lines = [f"time of the virtual processors: {shares}"]
    if s.steps:
        lines.append("  (steps of matrices are made with the last product of their gradient: they count as compute)")
    host = "  ".join(f"{name} {_ms(seconds / s.launches)}" for name, seconds in s.host.items())
    lines.append(f"host, per launch: {host}")
    if s.launches > 1:
        lines.append(f"between one launch and the next: {_ms(s.idle / (s.launches - 1))}")
    return "\n".join(lines)


def _by_vp(s: Summary) -> str:
    rows: list[tuple[str, ...]] = []
    shown = s.vps if len(s.vps) <= MOST_VPS else sorted(s.vps, key=lambda vp: -vp.delayed)[:MOST_VPS]
    for vp in shown:
        times = [_ms(getattr(vp, kind) / s.launches) for kind in KINDS]
        rows.append((str(vp.vp), *times, _ms(vp.delayed / s.launches), f"{vp.awaited / s.launches:.1f}"))
    title = f"per launch; the busiest works {s.imbalance:.2f} times as long as the mean"
    if len(shown) < len(s.vps):
        title += f"; the {MOST_VPS} of {len(s.vps)} that others wait for most"
    return "\n".join([title, *table(("VP", *KINDS, "waited for", "at waits"), rows)])


def _path(s: Summary) -> str:
    rows = [
        (_cut(p.name, NAMES), _ms(p.seconds / s.launches), f"{100 * p.share:.1f} %", f"{p.times / s.launches:.0f}")
        for p in s.critical[:MOST_PATH]
    ]
    rest = s.critical[MOST_PATH:]
    if rest:
        seconds, share = sum(p.seconds for p in rest), sum(p.share for p in rest)
        rows.append((f"{len(rest)} more", _ms(seconds / s.launches), f"{100 * share:.1f} %", ""))
    return "\n".join(table(("critical path", "per launch", "share", "times"), rows))


def _cells(s: Summary) -> str:
    head = ("most expensive cells", "all VPs", "share", "instructions", "rows", "per product", "MB", "on the path")
    rows = [
        (
            _cut(c.name, NAMES_OF_CELLS),
            _ms(c.seconds / s.launches),
            f"{100 * c.share:.1f} %",
            f"{c.instructions / s.launches:.0f}",
            f"{c.rows / s.launches:.0f}",
            f"{c.rows_per_product:.1f}" if c.products else "-",
            f"{c.bytes / s.launches / 1e6:.2f}",
            _ms(c.critical / s.launches),
        )
        for c in s.cells[:MOST_CELLS]
    ]
    return "\n".join(table(head, rows))


def _advice(s: Summary) -> str:
    lines = ["what would help"]
    for advice in s.advice:
        lines += textwrap.wrap(f"{advice.finding}:", WIDTH, initial_indent="- ", subsequent_indent="  ")
        lines += textwrap.wrap(advice.remedy, WIDTH, initial_indent="    ", subsequent_indent="    ")
    if len(lines) == 1:
        lines.append("- nothing stands out: the time goes into the work itself")
    return "\n".join(lines)
