"""The least time that a launch can take on a machine: what it has to do over what the machine gives.

A phase (forward, backward, gradients, update) is no faster than its operations allow, nor than its bytes do; the two
may overlap, so the larger counts. Phases follow one another, and nothing overlaps a barrier or the launch itself:

    floor of a launch = sum over phases of max(compute, memory) + barriers + launch

The bytes of a phase come from three places, at the rate of as much memory as is in use there. What no earlier phase of
the launch has touched comes from where all data of the launch lie. What one has touched comes, at best, from where the
data of the phase fit. And what instructions ask for again within the phase comes, if it is matrices, from where those
of the phase fit, else from the nearest cache. All these are rates that simple loops reach, and work is taken to be
divided evenly, as if no virtual processor ever waited for another one's result: a floor to compare with, not to reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

from vpps.report.roofline.peaks import Bandwidth, Peaks
from vpps.report.roofline.work import PHASES, Touched, Work


@dataclass(frozen=True, slots=True)
class PhaseFloor:
    """Seconds that a phase takes at least.

    Attributes:
        compute: for its floating-point operations.
        weights: for weights, their gradients and moments.
        activations: for rows of values and their gradients, and for the script.
    """

    compute: float
    weights: float
    activations: float

    @property
    def memory(self) -> float:
        """For all bytes."""
        return self.weights + self.activations

    @property
    def seconds(self) -> float:
        """For both at once."""
        return max(self.compute, self.memory)

    @property
    def bound(self) -> str:
        """Which of them it is."""
        return "compute" if self.compute >= self.memory else "memory"


@dataclass(frozen=True, slots=True)
class Floor:
    """Seconds that a launch takes at least.

    Attributes:
        phases: by name.
        barriers: for waiting at barriers.
        launch: for beginning and ending the launch.
    """

    phases: dict[str, PhaseFloor]
    barriers: float
    launch: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum(phase.seconds for phase in self.phases.values()) + self.barriers + self.launch

    def of(self, part: str) -> float:
        """Of compute, weights or activations over all phases, as if there were nothing else."""
        return float(sum(getattr(phase, part) for phase in self.phases.values()))


def floor_of(work: Work, peaks: Peaks) -> Floor:
    """The floor of a launch on a machine whose peaks are for as many virtual processors."""
    near = max(peaks.read.nearest, peaks.triad.nearest)
    phases = {}
    for phase in PHASES:
        amount, touched, fresh = work.of_phase(phase), work.touched[phase], work.fresh[phase]

        def once(what: str, rate: Bandwidth, touched: Touched = touched, fresh: Touched = fresh) -> float:
            new = getattr(fresh, what)
            return float(new / rate.at(work.resident) + (getattr(touched, what) - new) / rate.at(touched.bytes))

        # Products read matrices only; everything else reads and writes.
        weights = once("matrices", peaks.read) + once("parameters", peaks.triad)
        weights += max(0, amount.weights - touched.matrices) / peaks.read.at(touched.matrices)
        weights += max(0, amount.gradients + amount.updates - touched.parameters) / near
        again = max(0, amount.activations + amount.script - touched.activations)
        compute = (amount.flops - amount.paired / 2) / peaks.flops
        phases[phase] = PhaseFloor(compute, weights, once("activations", peaks.triad) + again / near)
    return Floor(phases, work.barriers * peaks.barrier, peaks.launch)


def mean_floor(floors: Sequence[Floor]) -> Floor:
    """The average of some launches."""
    phases = {}
    for name in PHASES:
        parts = [astuple(floor.phases[name]) for floor in floors]
        phases[name] = PhaseFloor(*np.mean(parts, axis=0).tolist())
    barriers, launch = np.mean([(floor.barriers, floor.launch) for floor in floors], axis=0).tolist()
    return Floor(phases, barriers, launch)
