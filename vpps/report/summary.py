"""Summarizes the time of launches by kind of work, virtual processor and cell, and along the critical path."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from vpps.engine.activity import Activity
from vpps.engine.timeline import HOST_SPANS, Timeline
from vpps.planner.reader import PRODUCTS
from vpps.report.critical import BARRIERS, critical_path
from vpps.targets import TARGETS
from vpps.text import Readable, counted, table

KINDS = ("compute", "load", "update", "waiting")  # kinds of time of a virtual processor
MOST_CELLS = 5
MOST_VPS = 16  # rows in the table of virtual processors
MOST_PATH = 8
NAMES, NAMES_OF_CELLS = 72, 32  # widths in characters


class VpTime(NamedTuple):
    """Seconds of one virtual processor. compute + load + update + waiting is the time of the launches.

    Attributes:
        compute: forward, backward and weight gradients, including optimizer steps that are fused with a matrix's last
            gradient product.
        load: loading weights onto the chip.
        update: gradient norm, and optimizer steps that are separate instructions.
        waiting: time at barriers, before the first instruction and after the last one.
        awaited: number of others' waits that this virtual processor ended by arriving last.
        delayed: total seconds of these waits.
    """

    vp: int
    compute: float
    load: float
    update: float
    waiting: float
    awaited: int
    delayed: float


@dataclass(slots=True)
class CellTime:
    """Time and work of a cell, or of instructions outside cells by purpose ("adam step", "load").

    Attributes:
        seconds: total over all virtual processors.
        instructions: number of instructions; one that several virtual processors divide is counted once.
        rows: rows of all results.
        products: number of these that are products with a matrix or its transpose, excluding gradient products.
        product_rows: vectors that these products multiply.
        bytes: bytes of weights, gradients and moments read and written.
        critical: seconds on the critical path.
    """

    seconds: float = 0.0
    instructions: int = 0
    rows: int = 0
    products: int = 0
    product_rows: int = 0
    bytes: int = 0
    critical: float = 0.0


class PathTime(NamedTuple):
    """Time of one activity on the critical path, and the number of its segments."""

    name: str
    seconds: float
    share: float
    times: int


class Summary(Readable):
    """Summary of one or more launches on the same virtual processors. Its `str` is plain text, 110 columns wide.

    Attributes:
        seconds: total seconds of the launches.
        idle: total seconds between the end of a launch and the start of the next one.
        shares: shares of all virtual processors' time by kind: compute, load, update, waiting.
        vps: times of each virtual processor.
        cells: times by cell name, longest first.
        critical: times on the critical path, longest first.

    Raises:
        KernelError: a timeline lacks records.
    """

    def __init__(self, timelines: Sequence[Timeline], target: str) -> None:
        self._timelines, self._target = timelines, target
        n_vps = timelines[0].n_vps
        kinds = {kind: np.zeros(n_vps) for kind in KINDS}
        awaited, delayed = np.zeros(n_vps, int), np.zeros(n_vps)
        cells: dict[str, CellTime] = defaultdict(CellTime)
        path: dict[str, list[int]] = defaultdict(list)  # nanoseconds
        self._makes_steps = False
        for timeline in timelines:
            timeline.check_complete()
            self._makes_steps |= any(a.form == "OuterUpdate" for a in timeline.activities)
            _add_cells(timeline, kinds, cells)
            found = critical_path(timeline)
            awaited += found.awaited
            delayed += found.delayed
            for segment in found.segments:
                path[segment.name].append(segment.end - segment.start)
                if segment.name != BARRIERS and segment.cell:
                    cells[segment.cell].critical += (segment.end - segment.start) * 1e-9
        self.seconds = sum(t.duration for t in timelines)
        self.idle = sum(max(0, after.start - before.end) for before, after in pairwise(timelines)) * 1e-9
        busy = kinds["compute"] + kinds["load"] + kinds["update"]
        self._busy, self._most_busy = float(busy.sum()), float(busy.max())
        kinds["waiting"] = np.maximum(self.seconds - busy, 0.0)  # rounding may make sums exceed the total
        whole = self.seconds * n_vps or 1.0
        self.shares = {kind: float(seconds.sum()) / whole for kind, seconds in kinds.items()}
        columns = zip(*(kinds[kind].tolist() for kind in KINDS), awaited.tolist(), delayed.tolist(), strict=True)
        self.vps = [VpTime(vp, *row) for vp, row in enumerate(columns)]
        self.cells = dict(sorted(cells.items(), key=lambda item: -item[1].seconds))
        self.critical = sorted(
            (
                PathTime(name, sum(ns) * 1e-9, sum(ns) * 1e-9 / (self.seconds or 1.0), len(ns))
                for name, ns in path.items()
            ),
            key=lambda p: -p.seconds,
        )

    def __str__(self) -> str:
        timelines = self._timelines
        launches, vps = counted(len(timelines), "launch", "launches"), counted(len(self.vps), "virtual processor")
        barriers = round(sum(t.plan.n_barriers for t in timelines) / len(timelines))
        instructions = round(sum(len(t.records) for t in timelines) / len(timelines))
        head = (
            f"{launches} on {self._target}, {vps}: {self._each(self.seconds)} each, "
            f"{counted(barriers, 'barrier')}, {counted(instructions, 'instruction')} executed"
        )
        if TARGETS[self._target].is_emulated:
            head += "\n(times of the emulator, whose threads take turns: they say what is done, not how long a GPU "
            head += "takes)"
        return "\n\n".join([head, self._by_kind(), self._by_vp(), self._path(), self._by_cell()]) + "\n"

    def _each(self, seconds: float) -> str:
        """Format seconds as milliseconds per launch."""
        return _ms(seconds / len(self._timelines))

    def _by_kind(self) -> str:
        shares = "  ".join(f"{kind} {100 * share:.1f} %" for kind, share in self.shares.items())
        lines = [f"time of the virtual processors: {shares}"]
        if self._makes_steps:
            lines.append(
                "  (steps of matrices are made with the last product of their gradient: they count as compute)"
            )
        spans = [span for t in self._timelines for span in t.host]
        host = {name: sum(span.seconds for span in spans if span.name == name) for name in HOST_SPANS}
        lines.append(f"host, per launch: {'  '.join(f'{name} {self._each(s)}' for name, s in host.items())}")
        if between := len(self._timelines) - 1:
            lines.append(f"between one launch and the next: {_ms(self.idle / between)}")
        return "\n".join(lines)

    def _by_vp(self) -> str:
        most = len(self.vps) > MOST_VPS
        shown = sorted(self.vps, key=lambda vp: -vp.delayed)[:MOST_VPS] if most else self.vps
        rows = [
            (
                vp.vp,
                *(self._each(getattr(vp, name)) for name in (*KINDS, "delayed")),
                f"{vp.awaited / len(self._timelines):.1f}",
            )
            for vp in shown
        ]
        imbalance = self._most_busy * len(self.vps) / self._busy if self._busy else 1.0
        title = f"per launch; the busiest works {imbalance:.2f} times as long as the mean"
        if most:
            title += f"; the {MOST_VPS} of {len(self.vps)} that others wait for most"
        return "\n".join([title, *table(("VP", *KINDS, "waited for", "at waits"), rows)])

    def _path(self) -> str:
        n = len(self._timelines)
        rows = [
            (_cut(p.name, NAMES), self._each(p.seconds), f"{100 * p.share:.1f} %", f"{p.times / n:.0f}")
            for p in self.critical[:MOST_PATH]
        ]
        if rest := self.critical[MOST_PATH:]:
            seconds, share = sum(p.seconds for p in rest), sum(p.share for p in rest)
            rows.append((f"{len(rest)} more", self._each(seconds), f"{100 * share:.1f} %", ""))
        return "\n".join(table(("critical path", "per launch", "share", "times"), rows))

    def _by_cell(self) -> str:
        head = ("most expensive cells", "all VPs", "share", "instructions", "rows", "per product", "MB", "on the path")
        n = len(self._timelines)
        rows = [
            (
                _cut(name, NAMES_OF_CELLS),
                self._each(c.seconds),
                f"{100 * c.seconds / (self._busy or 1.0):.1f} %",
                f"{c.instructions / n:.0f}",
                f"{c.rows / n:.0f}",
                f"{c.product_rows / c.products:.1f}" if c.products else "-",
                f"{c.bytes / n / 1e6:.2f}",
                self._each(c.critical),
            )
            for name, c in list(self.cells.items())[:MOST_CELLS]
        ]
        return "\n".join(table(head, rows))


def _add_cells(timeline: Timeline, kinds: dict[str, Any], cells: dict[str, CellTime]) -> None:
    """Add a launch's instructions to the times by kind and virtual processor, and to those of their cells."""
    records, of, n = timeline.records, timeline.activity_of, len(timeline.activities)
    took = (records["end"] - records["start"]) * 1e-9
    total = np.bincount(of, took, n)
    n_bytes = np.zeros(n, np.int64)
    np.add.at(n_bytes, of, records["bytes"].astype(np.int64))
    kind_of = np.array([KINDS.index(a.kind) for a in timeline.activities])[of]
    for k, kind in enumerate(KINDS):
        kinds[kind] += np.bincount(records["vp"], took * (kind_of == k), timeline.n_vps)
    for k, activity in enumerate(timeline.activities):
        if activity.kind == "waiting":
            continue
        cell = cells[group_of(activity)]
        cell.seconds += float(total[k])
        cell.instructions += 1
        cell.rows += activity.rows if activity.width else 0
        if activity.form in PRODUCTS:
            cell.products += 1
            cell.product_rows += activity.rows
        cell.bytes += int(n_bytes[k])


def group_of(activity: Activity) -> str:
    """Return the key under which to sum an activity: its cell, or its purpose if no cell produced it."""
    if activity.cell:
        return activity.cell
    if activity.kind in ("update", "load"):
        return f"({activity.kind})"
    return "(gradients of tables)" if activity.form == "GatherSum" else f"({activity.name})"


def _cut(name: str, columns: int) -> str:
    return name if len(name) <= columns else name[: columns - 1] + "…"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"
