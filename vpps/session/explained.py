"""What `Handle.explain` says: of the model, the kernel, tuning, the latest call and the cell compiler."""

from __future__ import annotations

from functools import partial

from vpps.engine.engine import Engine
from vpps.engine.explanation import KernelFacts, explain
from vpps.placement.distribution import Distribution
from vpps.planner.plan import Plan
from vpps.planner.policies.comparison import compared
from vpps.record.topology import Topology

COMPARED = 20_000
"""Of larger graphs nothing is said of what other policies would make: that would take seconds."""


def explained(engine: Engine, moments: int, trains: bool, tuned: str) -> str:
    """Plain text of 110 columns.

    Args:
        moments: that the optimizer keeps of each weight.
        trains: whether the handle does.
        tuned: what is said of tuning.
    """
    machine, store, planner, plan = engine.machine, engine.store, engine.planner, engine.plan
    averages = store.ema is not None
    parameters = Distribution(engine.model, machine.vps, machine.panel, moments, trains, averages=averages)
    facts = KernelFacts(
        machine.target, machine.arch, machine.vps, machine.spec, machine.resources, engine.stepped_down, machine.driver
    )
    cells = planner.cells.explain() if planner is not None else ()
    memory = engine.memory if plan is not None else None
    batching, order = engine.batching.describe(), ""
    if planner is not None and plan is not None and len(plan.graph) <= COMPARED:
        topology = Topology(plan.graph)
        said = compared(topology, engine.batching, partial(planner.cells.load_of, topology))
        batching = [f"batches of the latest call {said}", *batching]
        order = _gathered(plan, engine.configuration.layout)
    return explain(parameters, engine.arrangement.onchip, facts, cells, memory, tuned, batching, order)


def _gathered(plan: Plan, layout: str) -> str:
    """Barriers of a plan and what it finds through index lists, in words."""
    from vpps.report.gathering import gathering

    found = gathering(plan)
    return (
        f"layout {layout}: {plan.n_barriers:,} barriers; lists of {found.list_words:,} words, gathered through them "
        f"{found.describe(training=plan.loss_slot >= 0)}"
    )
