"""`vpps-profile --policy`: learns how to batch a model's recurrences (policy `fsm`), and keeps that for handles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from vpps.cli.console import table_of
from vpps.cli.workload import Workload
from vpps.planner.native.automaton import Learned
from vpps.planner.native.typed_graphs import TypedGraph, batches, learn
from vpps.planner.policies.knowledge import cells_of
from vpps.record.topology import Topology
from vpps.report.inspection import inspect
from vpps.tuning.machines import MachineFiles

_HEADINGS = (
    "recurrence of", "vertices", "trials", "seconds", "states", "batches", "lower bound", "sufficient", "critical",
    "stages",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trained:
    """What was learned of a recurrence.

    Attributes:
        cells: their names.
        vertices: of the graph that it was learned from, those of the recurrence.
        learned: what came of it.
        sufficient, critical: batches of the same graph by the policies of those names.
        path: of the file where it is kept; "" where it is not.
    """

    cells: tuple[str, ...]
    vertices: int
    learned: Learned
    sufficient: int
    critical: int
    path: str

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        learned = self.learned
        return {
            "cells": list(self.cells), "vertices": self.vertices, "trials": learned.trials, "seconds": learned.seconds,
            "states": len(learned.machine.table), "batches": learned.batches, "stages": learned.stages,
            "lower_bound": learned.lower_bound, "sufficient": self.sufficient, "critical": self.critical,
            "path": self.path,
        }  # fmt: skip


def trained(workload: Workload, target: str, store: bool) -> Iterator[Trained]:
    """Learn each recurrence of several cells anew that the first batch of a workload has.

    Args:
        target: for which it is planned.
        store: keep the machines in the tuning database, in place of what is there.

    Raises:
        CompileError: the directory cannot be used.
    """
    example = workload.first(1)[0]
    planner = inspect(workload.model, example, target, optimizer=workload.optimizer).planner
    knowledge, files, topology = planner.batching.knowledge, MachineFiles(), Topology(example[0])
    for members in topology.recurrence.shared:
        recurrence = knowledge.recurrence(cells_of(topology, members))
        arranged = recurrence.arranged(members)
        graph = TypedGraph.of(topology, arranged)
        learned = learn(graph, knowledge.settings)
        names = tuple(cell.name for cell in recurrence.cells)
        path = files.store(recurrence.digests, names, learned, knowledge.settings) if store else ""
        sufficient, critical = (batches(graph, policy).n_steps for policy in ("sufficient", "critical"))
        yield Trained(names, graph.n, learned, sufficient, critical, str(path))


def trained_table(found: list[Trained]) -> Table | str:
    """A row for each recurrence."""
    if not found:
        return "no recurrence of several cells: every policy but depth and agenda is sinks-last, with nothing to learn"
    rows = []
    for one in found:
        said = one.as_json()
        counts = ("states", "batches", "lower_bound", "sufficient", "critical", "stages")
        rows.append([
            ", ".join(one.cells), f"{one.vertices:,}", str(said["trials"]), f"{said['seconds']:.2f}",
            *(str(said[name]) for name in counts),
        ])  # fmt: skip
    return table_of(_HEADINGS, rows, folded=_HEADINGS[:1])
