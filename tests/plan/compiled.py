"""The planner that serves, there at once."""

from __future__ import annotations

from vpps.plan.distribution import Distribution
from vpps.plan.native import library
from vpps.plan.native.planner import planner_for
from vpps.plan.passes import Passes
from vpps.plan.planner import Planner
from vpps.plan.row_order import RECORDED


def planner(
    distribution: Distribution,
    policy: str = "sinks-last",
    schedule: str = "vector",
    passes: Passes | None = None,
    layout: str = RECORDED,
) -> Planner:
    """That for a distribution."""
    library._loader.load()
    return planner_for(distribution, policy, schedule, passes, layout)
