"""Measures how far launches are above their floor: batches of a workload, each counted, all timed together."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from vpps.engine.configuration import Configuration
from vpps.engine.timeline import WAITING, Timeline
from vpps.kernel.host_compiler import tile_of_machine
from vpps.model.precisions import ALL_EXACT, Precisions
from vpps.placement.onchip import Device
from vpps.report.inspection import inspect
from vpps.report.roofline.floors import Floor, PhaseFloor, floor_of, mean_floor
from vpps.report.roofline.peaks import Peaks
from vpps.report.roofline.sheets import sheet_peaks
from vpps.report.roofline.work import PHASES, Amount, Work, work_of
from vpps.session.handle import Handle
from vpps.targets import CPU, CUDA

if TYPE_CHECKING:
    from vpps.cli.workload import Workload

BATCHES, PASSES = 8, 5


class _Timed:
    """Some work, the least time for it, and the time that it took."""

    __slots__ = ()

    amount: Amount
    floor: Floor | PhaseFloor
    seconds: float | None

    @property
    def ratio(self) -> float | None:
        """Measured time over the floor."""
        return None if self.seconds is None or not self.floor.seconds else self.seconds / self.floor.seconds

    @property
    def intensity(self) -> float:
        """Floating-point operations per byte that instructions ask for."""
        return self.amount.flops / max(1, self.amount.bytes)

    def _figures(self) -> dict[str, Any]:
        """As JSON types."""
        rates = {"gflops_per_second": self.amount.flops, "gbytes_per_second": self.amount.bytes}
        return {
            **_amounts(self.amount),
            "intensity": self.intensity,
            "seconds": self.seconds,
            "ratio": self.ratio,
            **{name: n / self.seconds / 1e9 if self.seconds else None for name, n in rates.items()},
        }


@dataclass(frozen=True, slots=True)
class PhasePoint(_Timed):
    """A phase of the launches, on average.

    Attributes:
        name: forward, backward, gradients or update.
        amount: what it has to do.
        touched: bytes of distinct memory that it needs.
        floor: seconds that it takes at least.
        seconds: that the virtual processors took for it, their average; None where nothing was measured.
    """

    name: str
    amount: Amount
    touched: int
    floor: PhaseFloor
    seconds: float | None

    def as_json(self) -> dict[str, Any]:
        """As JSON types."""
        floor = {**asdict(self.floor), "memory": self.floor.memory, "total": self.floor.seconds}
        return {
            "name": self.name, "bytes_touched": self.touched, "floor": floor, "bound": self.floor.bound,
            **self._figures(),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Point(_Timed):
    """A batch size of a workload: averages over its batches, times the medians of several passes over them.

    Attributes:
        workload, batch_size, settings: what was run.
        schedule: how steps became instructions.
        batches, passes: how many were measured.
        amount: what a launch has to do.
        resident: bytes of memory that a launch uses.
        barriers: of a launch.
        phases: in order.
        floor: seconds that it takes at least.
        seconds: of a launch, from the first beginning to the last end of a virtual processor; None where nothing was
            measured.
        waiting: of those, seconds at barriers and for others, the average of the virtual processors.
        step: seconds of a training step without records, the host's planning included, which runs beside the launch.
        by_kind, by_cell: amounts by name of the instruction and of the cell ("" where none made it).
    """

    workload: str
    batch_size: int
    settings: str
    schedule: str
    batches: int
    passes: int
    amount: Amount
    resident: int
    barriers: float
    phases: tuple[PhasePoint, ...]
    floor: Floor
    seconds: float | None
    waiting: float | None
    step: float | None
    by_kind: dict[str, Amount]
    by_cell: dict[str, Amount]

    @property
    def farthest(self) -> PhasePoint | None:
        """The phase with most time above its floor."""
        timed = [phase for phase in self.phases if phase.seconds is not None]
        return max(timed, key=lambda p: (p.seconds or 0.0) - p.floor.seconds, default=None)

    def as_json(self) -> dict[str, Any]:
        """As JSON types."""
        names = ("workload", "batch_size", "settings", "schedule", "batches", "passes", "barriers", "waiting", "step")
        floor = {part: self.floor.of(part) for part in ("compute", "weights", "activations")}
        floor |= {"barriers": self.floor.barriers, "launch": self.floor.launch, "total": self.floor.seconds}
        return {
            **{name: getattr(self, name) for name in names},
            **self._figures(),
            "bytes_resident": self.resident,
            "floor": floor,
            "phases": [phase.as_json() for phase in self.phases],
            "by_instruction": {name: _amounts(a) for name, a in sorted(self.by_kind.items())},
            "by_cell": {name: _amounts(a) for name, a in sorted(self.by_cell.items())},
        }


def _amounts(amount: Amount) -> dict[str, Any]:
    return {
        "instructions": amount.instructions,
        "flops": amount.flops,
        "bytes": {name: getattr(amount, name) for name in ("weights", "gradients", "updates", "activations", "script")},
    }


class Times:
    """Seconds of one pass over all batches."""

    def __init__(self, timelines: Sequence[Timeline]) -> None:
        n = len(timelines)
        self.seconds = sum(t.duration for t in timelines) / n
        parts = [t.seconds() for t in timelines]
        self.phases = {name: sum(float(p[name].mean()) for p in parts) / n for name in (*PHASES, WAITING)}


def measured_point(
    workload: Workload,
    peaks: Peaks,
    schedule: str,
    batches: int,
    passes: int,
    progress: Callable[[str], None],
    precisions: Precisions = ALL_EXACT,
) -> Point:
    """Train on the first batches of a workload on target cpu, and compare with the floor; its weights change.

    Args:
        peaks: of this machine; they say how many virtual processors.
        passes: over the batches, that are timed; one before them warms up.
        precisions: of products with parameters.

    Raises:
        WorkloadError: there are no batches.
    """
    items = workload.first(batches)
    options: dict[str, Any] = {
        "target": CPU.name, "vps": peaks.n_vps, "schedule": schedule, "precision": precisions.written,
    }  # fmt: skip
    progress(f"batch size {workload.batch_size}: counting")
    with Handle(workload.model, workload.optimizer, timeline=True, **options) as handle:
        tile = tile_of_machine(handle.inspect(*items[0]).tile_name)  # the tuning database may name another one
        works = []
        for graph, loss in items:
            handle.fb(graph, loss)
            works.append(work_of(handle.timeline().plan, tile.panel, tile.vectors))
        times = []
        for k in range(passes):
            progress(f"batch size {workload.batch_size}: launches, pass {k + 1} of {passes}")
            timelines = []
            for graph, loss in items:
                handle.fb(graph, loss)
                timelines.append(handle.timeline())
            times.append(Times(timelines))
    steps = []
    with Handle(workload.model, workload.optimizer, **options) as handle:
        for k in range(passes + 1):
            progress(f"batch size {workload.batch_size}: steps, pass {k} of {passes}")
            start = time.perf_counter()
            for graph, loss in items:
                handle.fb(graph, loss)
            handle.sync_get_latest_loss()
            if k:
                steps.append((time.perf_counter() - start) / len(items))
    return point_of(workload, schedule, works, [floor_of(work, peaks) for work in works], times, steps)


def estimated_point(
    workload: Workload, device: Device, schedule: str, batches: int, progress: Callable[[str], None]
) -> Point:
    """Plan the first batches of a workload for a GPU and give their floor by its data sheet; nothing runs.

    Raises:
        WorkloadError: there are no batches.
        CapacityError: what the model needs does not fit.
    """
    items, works = workload.first(batches), []
    configuration = Configuration(schedule=schedule)
    for k, batch in enumerate(items):
        progress(f"batch size {workload.batch_size}: batch {k + 1} of {len(items)} for {device.name}")
        found = inspect(
            workload.model, batch, CUDA.name, device=device, configuration=configuration, optimizer=workload.optimizer
        )
        works.append(work_of(found.plan_made, panel=1))
    peaks = sheet_peaks(device)
    return point_of(workload, schedule, works, [floor_of(work, peaks) for work in works])


def point_of(
    workload: Workload,
    schedule: str,
    works: Sequence[Work],
    floors: Sequence[Floor],
    times: Sequence[Times] = (),
    steps: Sequence[float] = (),
) -> Point:
    """Averages over batches, medians over passes.

    Args:
        works, floors: of each batch.
        times, steps: of each pass, steps in seconds; none where nothing is measured.
    """
    n = len(works)

    def median(values: list[float]) -> float | None:
        return statistics.median(values) if values else None

    floor = mean_floor(floors)
    phases = []
    for name in PHASES:
        amount = _mean([work.of_phase(name) for work in works])
        touched = sum(work.touched[name].bytes for work in works) // n
        phases.append(PhasePoint(name, amount, touched, floor.phases[name], median([t.phases[name] for t in times])))
    return Point(
        workload.name,
        workload.batch_size,
        workload.settings,
        schedule,
        n,
        len(times),
        _mean([work.total for work in works]),
        sum(work.resident for work in works) // n,
        sum(work.barriers for work in works) / n,
        tuple(phases),
        floor,
        median([t.seconds for t in times]),
        median([t.phases[WAITING] for t in times]),
        median(list(steps)),
        _mean_by([work.by(2) for work in works]),
        _mean_by([work.by(1) for work in works]),
    )


def _mean(amounts: Sequence[Amount]) -> Amount:
    return Amount.sum(amounts).divided(len(amounts))


def _mean_by(found: Sequence[dict[str, Amount]]) -> dict[str, Amount]:
    names = dict.fromkeys(name for amounts in found for name in amounts)
    return {name: _mean([amounts.get(name, Amount()) for amounts in found]) for name in names}
