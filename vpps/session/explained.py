"""What `Handle.explain` says: of the model, the kernel, tuning, the latest call and the cell compiler."""

from __future__ import annotations

from vpps.engine.engine import Engine
from vpps.engine.explanation import explain
from vpps.model.precisions import ALL_EXACT
from vpps.placement.distribution import Distribution
from vpps.planner.plan import Plan
from vpps.text import in_bytes

MOST_WALKED = 20_000
"""Vertices of graphs whose index lists are described; of larger graphs that would take seconds."""


def explained(engine: Engine, moments: int, trains: bool, tuned: str) -> str:
    """Plain text of 110 columns.

    Args:
        moments: that the optimizer keeps of each weight.
        trains: whether the handle does.
        tuned: what is said of tuning.
    """
    machine, store, planner, plan = engine.machine, engine.store, engine.planner, engine.plan
    averages = store.ema is not None
    parameters = Distribution(
        engine.model, machine.vps, machine.panel, moments, trains, averages=averages, precisions=store.precisions
    )
    cells = planner.cells.explain() if planner is not None else ()
    batching, peak, order = engine.batching.describe(), "", ""
    if plan is not None:
        memory = engine.memory
        latest = f"{in_bytes(memory.batch)} for its batch, {in_bytes(memory.script)} of script"
        peak = f"{in_bytes(memory.peak)} of the pool at most so far; the latest call: {latest}"
    if plan is not None and len(plan.graph) <= MOST_WALKED:
        order = _gathered(plan)
    products = "" if store.precisions == ALL_EXACT else store.precisions.describe()
    said = [("products", products), ("peak", peak), ("tuned", tuned)]
    said += [*(("batching", s) for s in batching), ("latest call", order)]
    onchip = engine.arrangement.onchip
    return explain(parameters, onchip, machine, engine.stepped_down, machine.driver, cells, said)


def _gathered(plan: Plan) -> str:
    """Barriers of a plan and what it finds through index lists, in words."""
    from vpps.report.gathering import gathering

    found = gathering(plan)
    return (
        f"{plan.n_barriers:,} barriers; lists of {found.list_words:,} words, gathered through them "
        f"{found.describe(training=plan.loss_slot >= 0)}"
    )
