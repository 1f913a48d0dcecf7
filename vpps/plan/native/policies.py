"""Batching policies in compiled code, on typed graphs as arrays, and machines learned there.

They find what vpps/plan/policies/ finds in Python, batch by batch and bit by bit. The compiled planner has them within
(stages.h); this is for learning, benches and tests.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np

from vpps.errors import ScriptError
from vpps.plan.native import library
from vpps.plan.native.interface import FoundBatches, FoundMachine, GivenCosts, GivenGraph, GivenSettings, code_of
from vpps.plan.policies.batching import Batches
from vpps.plan.policies.cost import Costs, Load
from vpps.plan.policies.learning import Learned, Settings
from vpps.plan.policies.machine import EncodingKind, Machine
from vpps.plan.policies.typed_graph import TypedGraph

RUN_BY_BATCHES = ("agenda", "sufficient", "critical", "fsm")
"""Those that `batches` knows."""


def _named(of: Any, names: str) -> dict[str, Any]:
    return {name: getattr(of, name) for name in names.split()}


class _Given:
    """A typed graph as compiled code takes it."""

    def __init__(self, graph: TypedGraph) -> None:
        columns = graph.type_of, graph.levels, graph.reader_ends, graph.reader
        self._alive = [np.ascontiguousarray(column, np.int64) for column in columns]
        self.at = ctypes.byref(GivenGraph(graph.n, graph.n_types, *(column.ctypes.data for column in self._alive)))


def batches(lib: ctypes.CDLL, graph: TypedGraph, policy: str, machine: Machine | None = None) -> tuple[Batches, int]:
    """Batches of a graph by a policy, and in how many steps the state was one that the machine does not know.

    Args:
        lib: of the compiled planner.
        policy: one of RUN_BY_BATCHES.
        machine: of "fsm".

    Raises:
        ScriptError: the machine is none for such a graph.
    """
    assert policy in RUN_BY_BATCHES
    numbers = machine.numbers() if machine is not None else np.zeros(0, np.int64)
    given = _Given(graph)
    sequence, stages, found = np.zeros(graph.n, np.int64), np.zeros(graph.n, np.int64), FoundBatches()
    good = lib.vpps_batches(
        given.at,
        code_of(policy),
        *(numbers.ctypes.data, len(numbers)),
        *(sequence.ctypes.data, stages.ctypes.data),
        ctypes.byref(found),
    )
    if not good:
        raise ScriptError("compiled code cannot read a machine; please report this")
    return Batches(sequence[: found.n_batches].tolist(), stages, found.n_stages, found.n_steps), found.unseen


def lower_bound(lib: ctypes.CDLL, graph: TypedGraph) -> int:
    """No sequence of batches is shorter (ED-Batch, A.3)."""
    found: int = lib.vpps_lower_bound(_Given(graph).at)
    return found


def learn(graph: TypedGraph, settings: Settings, costs: Costs) -> Learned:
    """As vpps.plan.policies.learning.learn: the same machine."""
    return learn_with(library.library(), graph, settings, costs)


def learn_with(lib: ctypes.CDLL, graph: TypedGraph, settings: Settings, costs: Costs) -> Learned:
    """The same, with the library of the compiled planner."""
    began = time.perf_counter()
    given, found = _Given(graph), FoundMachine()
    encoding = settings.encoding
    loads = [*costs.loads, *[Load(0.0, 0)] * (graph.n_types - len(costs.loads))]
    flops, barriers = np.array([x.flops for x in loads], np.float64), np.array([x.barriers for x in loads], np.int64)
    its_settings = GivenSettings(
        encoding=EncodingKind[encoding.kind.upper()],
        phases=encoding.phases,
        by_time=settings.reward == "time",
        **_named(settings, "horizon trials check_every seed alpha rate epsilon least_epsilon decay"),
    )
    its_costs = GivenCosts(
        flops=flops.ctypes.data, barriers=barriers.ctypes.data, **_named(costs, "barrier speed fixed vps")
    )
    learned = lib.vpps_learn(given.at, ctypes.byref(its_settings), ctypes.byref(its_costs), ctypes.byref(found))
    numbers = np.zeros(found.n_numbers, np.int64)
    lib.vpps_learned(learned, numbers.ctypes.data)
    seconds = time.perf_counter() - began
    return Learned(Machine.from_numbers(numbers), found.trials, seconds, found.n_steps, found.n_stages, found.bound)
