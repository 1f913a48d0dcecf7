"""`vpps-profile --policy`: learns how to batch a model's recurrences (policy `fsm`), and keeps that for handles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from vpps.cli.console import table_of
from vpps.cli.workload import Workload
from vpps.planner.native.typed_graphs import TypedGraph, batches, learn
from vpps.planner.policies.knowledge import cells_of
from vpps.record.topology import Topology
from vpps.report.inspection import inspect
from vpps.tuning.automata import AutomatonFiles


def trained(workload: Workload, target: str, store: bool) -> Iterator[dict[str, Any]]:
    """Learn each recurrence of several cells anew that the first batch of a workload has; what came of it, as JSON has
    it. `sufficient` and `critical` are batches of the same graph by the policies of those names.

    Args:
        target: for which it is planned.
        store: keep the machines in the tuning database, in place of what is there.

    Raises:
        CompileError: the directory cannot be used.
    """
    example = workload.first(1)[0]
    planner = inspect(workload.model, example, target, optimizer=workload.optimizer).planner
    knowledge, files, topology = planner.batching.knowledge, AutomatonFiles(), Topology(example[0])
    for members in topology.recurrence.shared:
        recurrence = knowledge.recurrence(cells_of(topology, members))
        arranged = recurrence.arranged(members)
        graph = TypedGraph.of(topology, arranged)
        learned = learn(graph, knowledge.settings)
        names = tuple(cell.name for cell in recurrence.cells)
        path = files.store(recurrence.digests, names, learned, knowledge.settings) if store else ""
        others = {policy: batches(graph, policy).n_steps for policy in ("sufficient", "critical")}
        yield {
            "cells": list(names), "vertices": graph.n, "trials": learned.trials, "seconds": learned.seconds,
            "states": len(learned.automaton.table), "batches": learned.batches, "stages": learned.stages,
            "lower_bound": learned.lower_bound, **others, "path": str(path),
        }  # fmt: skip


def trained_table(found: list[dict[str, Any]]) -> Table | str:
    """A row for each recurrence."""
    if not found:
        return "no recurrence of several cells: every policy but depth and agenda is sinks-last, with nothing to learn"
    counts = ("states", "batches", "lower_bound", "sufficient", "critical", "stages")
    headings = ("recurrence of", "vertices", "trials", "seconds", *(name.replace("_", " ") for name in counts))
    rows = [
        (
            ", ".join(one["cells"]), f"{one['vertices']:,}", str(one["trials"]), f"{one['seconds']:.2f}",
            *(str(one[name]) for name in counts),
        )
        for one in found
    ]  # fmt: skip
    return table_of(headings, rows, folded=headings[:1])
