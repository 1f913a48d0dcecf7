"""Counts a handle's memory by purpose."""

from __future__ import annotations

from dataclasses import dataclass

from vpps.ops.element import WORD_BYTES
from vpps.placement.distribution import Distribution
from vpps.planner.plan import Plan


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes that a handle uses (`handle.memory`). Parameters and batch are in the pool; the script is outside it.

    Attributes:
        weights: packed weights and, for a training handle, their packed transposes.
        gradients: gradients of dense parameters, and of lookup tables if `fb(accumulate=True)` keeps them; other
            gradients belong to the batch.
        moments: moments of the optimizer.
        averages: moving averages of the weights (`ema=`).
        batch: further memory of the latest call: values and gradients of vertices, gradients of lookup tables.
        script: instructions, index lists and data of the latest call.
        pool: capacity of the pool before it has to grow. The system commits memory only when it is used.
        peak: the most pool memory that any call has used so far.
    """

    weights: int = 0
    gradients: int = 0
    moments: int = 0
    averages: int = 0
    batch: int = 0
    script: int = 0
    pool: int = 0
    peak: int = 0


def memory_use(distribution: Distribution, plan: Plan | None, pool_floats: int, peak_floats: int) -> MemoryUse:
    """Count the bytes that the parameters and the latest plan use."""
    places = distribution.places.items()
    return MemoryUse(
        weights=sum(place.bytes + sum(distribution.copies(p)) for p, place in places),
        gradients=sum(place.bytes for _, place in places if place.gradient),
        moments=sum(place.bytes * len(place.moments) for _, place in places),
        averages=sum(place.bytes for _, place in places if place.average),
        batch=0 if plan is None else WORD_BYTES * (plan.pool_floats - distribution.end),
        script=0 if plan is None else plan.script.nbytes,
        pool=WORD_BYTES * pool_floats,
        peak=WORD_BYTES * peak_floats,
    )
