"""Machines and points whose figures are easy to reckon with."""

from __future__ import annotations

from dataclasses import replace

from vpps.profiling.roofline import PhasePoint, Point, point_of
from vpps.report.roofline.floors import floor_of
from vpps.report.roofline.peaks import Bandwidth, Peaks
from vpps.report.roofline.work import PHASES, Amount, Touched, Work

KB = 1e3

MACHINE = Peaks(
    name="a round machine",
    isa="avx2",
    n_vps=2,
    flops=1e9,
    flops_of_one=5e8,
    read=Bandwidth((1 * KB, 100 * KB), (4e9, 1e9)),
    triad=Bandwidth((1 * KB, 100 * KB), (2e9, 5e8)),
    barrier=1e-6,
    launch=1e-5,
    load=0.0,
)


def work(resident: int = 100_000, **amounts: int) -> Work:
    """A launch whose phases all do the same, each on data of its own."""
    touched = {phase: Touched(1000, 2000, 4000) for phase in PHASES}
    amount = Amount(**{"instructions": 1, "flops": 10_000, "weights": 3000, "updates": 2000, **amounts})
    by_kind = {(phase, "cell", "matvec"): replace(amount) for phase in PHASES}
    return Work(by_kind, touched, dict(touched), resident, barriers=10)


class _Workload:
    name, settings = "a-workload", "hidden=8"

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size


def point(batch_size: int, seconds: float | None = 2e-4) -> Point:
    """A point, measured so or not at all."""
    works = [work(activations=9000), work(activations=9000)]
    made = point_of(_Workload(batch_size), "vector", works, [floor_of(w, MACHINE) for w in works])  # type: ignore[arg-type]
    if seconds is None:
        return made
    phases = tuple(replace(phase, seconds=seconds / 5) for phase in made.phases)
    return replace(made, seconds=seconds, waiting=seconds / 5, step=seconds * 1.1, passes=3, phases=phases)


__all__ = ["KB", "MACHINE", "PhasePoint", "point", "work"]
