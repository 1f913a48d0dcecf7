"""Batching policies in compiled code, on typed graphs as arrays, and machines learned there.

They find what vpps/plan/policies/ finds in Python, batch by batch and bit by bit. The compiled planner has them within
(stages.h); this is for learning, benches and tests.
"""

from __future__ import annotations

import ctypes
import time

import numpy as np

from vpps.errors import ScriptError
from vpps.plan.native import library
from vpps.plan.policies.batching import Batches
from vpps.plan.policies.cost import Costs, Load
from vpps.plan.policies.knowledge import learn_in_python
from vpps.plan.policies.learning import Learned, Settings
from vpps.plan.policies.machine import ENCODINGS, Machine
from vpps.plan.policies.typed_graph import TypedGraph

CODES = ("depth", "agenda", "sinks-last", "sufficient", "critical", "fsm", "auto")
"""Policies by the number that compiled code has of them; as in policies.h, enum Policy."""

_Number = ctypes.c_int64 | ctypes.c_uint64 | ctypes.c_double

RUN_BY_BATCHES = ("agenda", "sufficient", "critical", "fsm")
"""Those that `batches` knows."""


def _fields(kind: type[_Number], names: str) -> list[tuple[str, type[_Number]]]:
    return [(name, kind) for name in names.split()]


class _Graph(ctypes.Structure):
    """As in policy_calls.h, struct GivenGraph."""

    _fields_ = _fields(ctypes.c_int64, "n n_types types levels reader_ends readers")


class _Settings(ctypes.Structure):
    """As in learning.h, struct Settings."""

    _fields_ = (
        _fields(ctypes.c_int64, "encoding phases by_time horizon trials check_every")
        + _fields(ctypes.c_uint64, "seed")
        + _fields(ctypes.c_double, "alpha rate epsilon least_epsilon decay")
    )


class _Costs(ctypes.Structure):
    """As in learning.h, struct Costs."""

    _fields_ = _fields(ctypes.c_double, "barrier speed fixed vps") + _fields(ctypes.c_int64, "flops barriers")


class _Given:
    """A typed graph as compiled code takes it."""

    def __init__(self, graph: TypedGraph) -> None:
        columns = graph.type_of, graph.levels, graph.reader_ends, graph.reader
        self._alive = [np.ascontiguousarray(column, np.int64) for column in columns]
        self.at = ctypes.byref(_Graph(graph.n, graph.n_types, *(column.ctypes.data for column in self._alive)))


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
    sequence, stages, found = np.zeros(graph.n, np.int64), np.zeros(graph.n, np.int64), np.zeros(4, np.int64)
    good = lib.vpps_batches(
        given.at,
        CODES.index(policy),
        *(numbers.ctypes.data, len(numbers)),
        *(a.ctypes.data for a in (sequence, stages, found)),
    )
    if not good:
        raise ScriptError("compiled code cannot read a machine; please report this")
    n_batches, n_stages, n_steps, unseen = found.tolist()
    return Batches(sequence[:n_batches].tolist(), stages, n_stages, n_steps), unseen


def lower_bound(lib: ctypes.CDLL, graph: TypedGraph) -> int:
    """No sequence of batches is shorter (ED-Batch, A.3)."""
    found: int = lib.vpps_lower_bound(_Given(graph).at)
    return found


def learn(graph: TypedGraph, settings: Settings, costs: Costs) -> Learned:
    """As vpps.plan.policies.learning.learn: the same machine, in compiled code once that is there. In Python, where
    there is no compiler, with fewer trials of large graphs."""
    library.prepare(wait=True)
    lib = library.library()
    return learn_in_python(graph, settings, costs) if lib is None else learn_with(lib, graph, settings, costs)


def learn_with(lib: ctypes.CDLL, graph: TypedGraph, settings: Settings, costs: Costs) -> Learned:
    """The same, with the library of the compiled planner."""
    began = time.perf_counter()
    given, found = _Given(graph), np.zeros(5, np.int64)
    encoding, by_time = settings.encoding, settings.reward == "time"
    loads = [*costs.loads, *[Load(0.0, 0)] * (graph.n_types - len(costs.loads))]
    flops, barriers = np.array([x.flops for x in loads], np.float64), np.array([x.barriers for x in loads], np.int64)
    its_settings = _Settings(
        *(ENCODINGS.index(encoding.kind), encoding.phases, by_time),
        *(settings.horizon, settings.trials, settings.check_every, settings.seed),
        *(settings.alpha, settings.rate, settings.epsilon, settings.least_epsilon, settings.decay),
    )
    its_costs = _Costs(
        *(costs.barrier, costs.speed, costs.fixed, costs.vps),
        *(flops.ctypes.data, barriers.ctypes.data),
    )
    learned = lib.vpps_learn(given.at, ctypes.byref(its_settings), ctypes.byref(its_costs), found.ctypes.data)
    trials, n_steps, n_stages, bound, n_numbers = found.tolist()
    numbers = np.zeros(n_numbers, np.int64)
    lib.vpps_learned(learned, numbers.ctypes.data)
    return Learned(Machine.from_numbers(numbers), trials, time.perf_counter() - began, n_steps, n_stages, bound)
