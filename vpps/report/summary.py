"""Where the time of some launches went: by kind of work, virtual processor and cell, and along the critical path."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from vpps.engine.activity import Activity
from vpps.engine.timeline import HOST_SPANS, Timeline
from vpps.planner.reader import PRODUCTS
from vpps.report.critical import BARRIERS, critical_path
from vpps.targets import TARGETS
from vpps.text import Report, counted, table

KINDS = ("compute", "load", "update", "waiting")  # of the time of a virtual processor
MOST_CELLS = 5
MOST_VPS = 16  # that are listed one by one
MOST_PATH = 8
NAMES, NAMES_OF_CELLS = 72, 32  # columns

PROGRAM, BEGINNING = "program", "beginning"  # parts of the gaps between launches
GAP_PARTS = (PROGRAM, *HOST_SPANS, BEGINNING)


@dataclass(frozen=True, slots=True)
class VpTime:
    """Seconds of one virtual processor. compute + load + update + waiting is the time of the launches.

    Attributes:
        compute: forward, backward and weight gradients. Where a matrix's last gradient product makes its step as well,
            that is in here.
        load: bringing weights to the chip.
        update: gradient norm and optimizer steps that are instructions of their own.
        waiting: at barriers, before its first instruction and after its last one.
        awaited: at how many waits of others it was the last to come.
        delayed: seconds that these others waited, in all.
    """

    vp: int
    compute: float
    load: float
    update: float
    waiting: float
    awaited: int
    delayed: float

    @property
    def busy(self) -> float:
        """All but waiting."""
        return self.compute + self.load + self.update


@dataclass(frozen=True, slots=True)
class CellTime:
    """What a cell took; of what no cell does, what its instructions are for ("adam step", "load").

    Attributes:
        name: of the cell.
        seconds: over all virtual processors.
        share: of the time in which they did not wait.
        phases: seconds by phase.
        instructions: of the scripts; several virtual processors that divide one count once.
        rows: rows of all results.
        products: products with a matrix, or its transpose, among the instructions; gradient products are none.
        rows_per_product: how many vectors met the matrix, on average; 0 where there is none.
        bytes: of weights, gradients and moments read and written.
        balance: mean over the largest time that virtual processors took for an instruction, weighted with time: 1 where
            they divide it evenly, 1 / VPs where one does all of it.
        critical: seconds of the critical path.
    """

    name: str
    seconds: float
    share: float
    phases: dict[str, float]
    instructions: int
    rows: int
    products: int
    rows_per_product: float
    bytes: int
    balance: float
    critical: float


@dataclass(frozen=True, slots=True)
class PathTime:
    """What takes time on the critical path, and how often it is on it."""

    name: str
    seconds: float
    share: float
    times: int


@dataclass(frozen=True, slots=True)
class Summary(Report):
    """Of some launches; made by `summarise`.

    Attributes:
        target: its name.
        launches: how many.
        seconds: that they lasted, in all.
        idle: seconds between the end of a launch and the beginning of the next one.
        gaps: those seconds by what they pass with (`GAP_PARTS`): before the next launch was asked for ("program"), the
            spans of the host, where "waiting" is its way back to work after the launch, and until a virtual processor
            began ("beginning").
        host: seconds of the host by span (`HOST_SPANS`).
        instructions: executed, counted once per virtual processor.
        barriers: of all launches.
        vps: by virtual processor.
        imbalance: largest over mean time in which a virtual processor did not wait.
        critical: of the critical path, longest first.
        cells: all of them, longest first.
        steps: seconds of gradient products that make the matrix's step as well, over all virtual processors.
        vectors_per_step: how many vectors such a product sums over, on average.
    """

    target: str
    launches: int
    seconds: float
    idle: float
    gaps: dict[str, float]
    host: dict[str, float]
    instructions: int
    barriers: int
    vps: list[VpTime]
    imbalance: float
    critical: list[PathTime]
    cells: list[CellTime]
    steps: float
    vectors_per_step: float

    @property
    def shares(self) -> dict[str, float]:
        """Share of all virtual processors' time, by kind."""
        total = self.seconds * len(self.vps) or 1.0
        return {kind: sum(getattr(vp, kind) for vp in self.vps) / total for kind in KINDS}

    @property
    def busy(self) -> float:
        """Seconds in which virtual processors did not wait, in all."""
        return sum(vp.busy for vp in self.vps)

    def as_json(self) -> dict[str, Any]:
        """For programs: the fields and `shares`."""
        return asdict(self) | {"shares": self.shares}

    def text(self) -> str:
        """Plain text of 110 columns."""
        each = self.seconds / self.launches
        vps = counted(len(self.vps), "virtual processor")
        head = (
            f"{counted(self.launches, 'launch', 'launches')} on {self.target}, {vps}: {_ms(each)} each, "
            f"{counted(round(self.barriers / self.launches), 'barrier')}, "
            f"{counted(round(self.instructions / self.launches), 'instruction')} executed"
        )
        if TARGETS[self.target].is_emulated:
            head += "\n(times of the emulator, whose threads take turns: they say what is done, not how long a GPU "
            head += "takes)"
        return "\n\n".join([head, _shares(self), _by_vp(self), _path(self), _cells(self)]) + "\n"


@dataclass(slots=True)
class _Cell:
    """A cell's figures while they are added up."""

    seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    instructions: int = 0
    rows: int = 0
    products: int = 0
    product_rows: int = 0
    bytes: int = 0
    largest: float = 0.0  # seconds that instructions would have taken if all had taken as long as the slowest
    critical: float = 0.0


def summarise(timelines: Sequence[Timeline], target: str) -> Summary:
    """Add up some launches, one or more, which all ran on the same virtual processors.

    Raises:
        KernelError: a timeline lacks records.
    """
    n_vps = timelines[0].n_vps
    kinds = {kind: np.zeros(n_vps) for kind in KINDS}
    awaited, delayed = np.zeros(n_vps, int), np.zeros(n_vps)
    cells: dict[str, _Cell] = defaultdict(_Cell)
    path: dict[str, list[int]] = defaultdict(list)  # nanoseconds
    for timeline in timelines:
        timeline.check_complete()
        _add_cells(timeline, kinds, cells)
        found = critical_path(timeline)
        awaited += found.awaited
        delayed += found.delayed
        for segment in found.segments:
            path[segment.name].append(segment.end - segment.start)
            if segment.name != BARRIERS and segment.cell:
                cells[segment.cell].critical += (segment.end - segment.start) * 1e-9
    seconds = sum(t.duration for t in timelines)
    busy = kinds["compute"] + kinds["load"] + kinds["update"]
    kinds["waiting"] = np.maximum(seconds - busy, 0.0)  # sums of fractions may come out a trifle above the whole
    columns = zip(*(kinds[kind].tolist() for kind in KINDS), awaited.tolist(), delayed.tolist(), strict=True)
    gaps = _gaps(timelines)
    steps = [step for t in timelines for step in _steps(t)]
    return Summary(
        target=target,
        launches=len(timelines),
        seconds=seconds,
        idle=sum(gaps.values()),
        gaps=gaps,
        host={name: sum(s.seconds for t in timelines for s in t.host if s.name == name) for name in HOST_SPANS},
        instructions=sum(len(t.records) for t in timelines),
        barriers=sum(t.plan.n_barriers for t in timelines),
        vps=[VpTime(vp, *row) for vp, row in enumerate(columns)],
        imbalance=float(busy.max() / busy.mean()) if busy.any() else 1.0,
        critical=sorted(
            (PathTime(name, sum(ns) * 1e-9, sum(ns) * 1e-9 / (seconds or 1.0), len(ns)) for name, ns in path.items()),
            key=lambda p: -p.seconds,
        ),
        cells=_cell_times(cells, float(busy.sum()), n_vps),
        steps=sum(seconds for seconds, _ in steps),
        vectors_per_step=sum(seconds * rows for seconds, rows in steps) / (sum(s for s, _ in steps) or 1.0),
    )


def _gaps(timelines: Sequence[Timeline]) -> dict[str, float]:
    """Seconds between launches, by what they pass with."""
    found = dict.fromkeys(GAP_PARTS, 0.0)
    for before, after in pairwise(timelines):
        times = [before.end, after.host[0].start, *(span.end for span in after.host), after.start]
        for part, (start, end) in zip(GAP_PARTS, pairwise(times), strict=True):
            found[part] += max(0, min(end, after.start) - max(start, before.end)) * 1e-9
    return found


def _add_cells(timeline: Timeline, kinds: dict[str, Any], cells: dict[str, _Cell]) -> None:
    """Add a launch's instructions to the times by kind and virtual processor, and to those of their cells."""
    records, of, n = timeline.records, timeline.activity_of, len(timeline.activities)
    took = (records["end"] - records["start"]) * 1e-9
    total = np.bincount(of, took, n)
    largest = np.zeros(n)
    np.maximum.at(largest, of, took)
    n_bytes = np.zeros(n, np.int64)
    np.add.at(n_bytes, of, records["bytes"].astype(np.int64))
    kind_of = np.array([KINDS.index(a.kind) for a in timeline.activities])[of]
    for k, kind in enumerate(KINDS):
        kinds[kind] += np.bincount(records["vp"], took * (kind_of == k), timeline.n_vps)
    for k, activity in enumerate(timeline.activities):
        if activity.kind == "waiting":
            continue
        cell = cells[group_of(activity)]
        cell.seconds += total[k]
        cell.phases[activity.phase] += total[k]
        cell.instructions += 1
        cell.rows += activity.rows if activity.width else 0
        if activity.form in PRODUCTS:
            cell.products += 1
            cell.product_rows += activity.rows
        cell.bytes += int(n_bytes[k])
        cell.largest += largest[k]


def _steps(timeline: Timeline) -> list[tuple[float, int]]:
    """(seconds of all virtual processors, vectors) of every gradient product that makes a step as well."""
    took = (timeline.records["end"] - timeline.records["start"]) * 1e-9
    total = np.bincount(timeline.activity_of, took, len(timeline.activities)).tolist()
    return [(t, a.rows) for t, a in zip(total, timeline.activities, strict=True) if a.form == "OuterUpdate"]


def group_of(activity: Activity) -> str:
    """What an activity's time is added up under: its cell, or what instructions that no cell made are for."""
    if activity.cell:
        return activity.cell
    if activity.kind in ("update", "load"):
        return f"({activity.kind})"
    return "(gradients of tables)" if activity.form == "GatherSum" else f"({activity.name})"


def _cell_times(cells: dict[str, _Cell], busy: float, n_vps: int) -> list[CellTime]:
    found = [
        CellTime(
            name,
            float(c.seconds),
            float(c.seconds / busy) if busy else 0.0,
            {phase: float(s) for phase, s in c.phases.items()},
            c.instructions,
            c.rows,
            c.products,
            c.product_rows / c.products if c.products else 0.0,
            c.bytes,
            float(c.seconds / (n_vps * c.largest)) if c.largest else 1.0,
            c.critical,
        )
        for name, c in cells.items()
    ]
    return sorted(found, key=lambda c: -c.seconds)


# ---- as text


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
    shown = s.vps if len(s.vps) <= MOST_VPS else sorted(s.vps, key=lambda vp: -vp.delayed)[:MOST_VPS]
    rows = [
        (
            vp.vp,
            *(_ms(getattr(vp, name) / s.launches) for name in (*KINDS, "delayed")),
            f"{vp.awaited / s.launches:.1f}",
        )
        for vp in shown
    ]
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
