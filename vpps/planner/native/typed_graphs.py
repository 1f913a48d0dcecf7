"""Typed graphs as arrays, for running policies and learning outside the planner. The compiled planner builds separate
ones (stages.h)."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from vpps.errors import ScriptError
from vpps.model.learned_policy import Automaton, Encoding, EncodingKind
from vpps.planner.native import library
from vpps.planner.native.interface import AutomatonResult, BatchesResult, GraphInput, SettingsInput
from vpps.record.arrays import Ints
from vpps.record.topology import Topology


class TypedGraph:
    """Vertices, each with a type, and an edge for every value that one vertex computes and another reads.

    Args:
        type_of: (n,) type of each vertex, from 0.
        levels: (n,) level of each vertex, above the levels of all vertices that it reads; for a policy that needs it,
            the vertex's depth.
        producers, readers: (edges,) the two ends of every edge; a value that is read twice has two edges.
        n_types: number of types; default: one more than the largest type.

    Attributes:
        n: number of vertices.
    """

    def __init__(self, type_of: Ints, levels: Ints, producers: Ints, readers: Ints, n_types: int | None = None) -> None:
        self.n = len(type_of)
        self.type_of, self.levels = type_of, levels
        self.producers, self.readers = producers, readers
        self.n_types = int(type_of.max(initial=-1)) + 1 if n_types is None else n_types

    @classmethod
    def of(cls, topology: Topology, members: Sequence[int] | None = None) -> TypedGraph:
        """Return the graph of some blocks' vertices, which are numbered in block order.

        Args:
            members: numbers of the blocks; the first one is type 0, and so on. Default: all, in order.
        """
        numbers = range(len(topology.blocks)) if members is None else members
        blocks = [topology.blocks[number] for number in numbers]
        sizes = [len(b.calls) for b in blocks]
        firsts = np.cumsum([0, *sizes])
        vertex_of = np.full(topology.n_values, -1, np.int64)  # producer of each value
        for first, b in zip(firsts, blocks, strict=False):
            for values in b.values:
                vertex_of[values] = np.arange(first, first + len(values))
        producers, readers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for first, b in zip(firsts, blocks, strict=False):
            for rows, values in b.operands():
                producer = vertex_of[values]
                inside = producer >= 0
                producers.append(producer[inside])
                readers.append(first + rows[inside])
        type_of = np.repeat(np.arange(len(blocks)), sizes)
        levels = np.concatenate([np.zeros(0, np.int64), *(b.levels for b in blocks)])
        return cls(type_of, levels, np.concatenate(producers), np.concatenate(readers), len(blocks))

    @classmethod
    def joined(cls, graphs: Sequence[TypedGraph]) -> TypedGraph:
        """Return the disjoint union of graphs that share their types."""
        firsts = np.cumsum([0, *(graph.n for graph in graphs)])
        producers, readers = (
            np.concatenate([first + ends for first, ends in zip(firsts, of_end, strict=False)])
            for of_end in ([graph.producers for graph in graphs], [graph.readers for graph in graphs])
        )
        type_of, levels = (np.concatenate(x) for x in zip(*((g.type_of, g.levels) for g in graphs), strict=True))
        return cls(type_of, levels, producers, readers, graphs[0].n_types)


@dataclass(frozen=True, slots=True)
class Batches:
    """Batches and stages that a policy chooses for a typed graph.

    Attributes:
        sequence: type of each batch, in the order chosen.
        stages: stage of each vertex.
        n_stages: number of stages; each ends with a barrier.
        n_steps: number of distinct (type, stage), at most the number of batches.
        unseen: number of batches that began in a state unknown to the automaton.
    """

    sequence: list[int]
    stages: Ints
    n_stages: int
    n_steps: int
    unseen: int


@dataclass(frozen=True, slots=True)
class LearningSettings:
    """Hyper-parameters for learning.

    Attributes:
        encoding: state encoding.
        alpha: weight in a batch's reward, which is -1 plus `alpha` times the share of its type's frontier that it runs
            (ED-Batch, equation 1).
        horizon: N in N-step Q-learning: number of batches whose rewards are summed before a state's value is used.
        rate: learning rate.
        epsilon, least_epsilon, decay: probability of a random action in the first trial, its minimum, and the factor
            that it is multiplied by after each trial.
        trials: maximum number of trials.
        check_every: trials between runs of the greedy policy; if a run attains the lower bound, learning ends.
        seed: random seed.
    """

    encoding: Encoding = field(default_factory=Encoding)
    alpha: float = 0.5
    horizon: int = 32
    rate: float = 0.05
    epsilon: float = 0.1
    least_epsilon: float = 0.01
    decay: float = 0.99
    trials: int = 1000
    check_every: int = 20
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Learned:
    """Result of learning from a graph.

    Attributes:
        automaton: the best automaton.
        trials: number of trials.
        seconds: duration of learning.
        batches, stages: numbers of batches and stages that the automaton gives for the graph.
        lower_bound: lower bound on the number of batches (ED-Batch, A.3).
    """

    automaton: Automaton
    trials: int
    seconds: float
    batches: int
    stages: int
    lower_bound: int


class _GraphArrays:
    """A typed graph in the format of compiled code."""

    def __init__(self, graph: TypedGraph) -> None:
        columns = graph.type_of, graph.levels, graph.producers, graph.readers
        self._alive = [np.ascontiguousarray(column, np.int64) for column in columns]
        sizes = graph.n, graph.n_types, len(graph.producers)
        self.at = ctypes.byref(GraphInput(*sizes, *(column.ctypes.data for column in self._alive)))


def batches(graph: TypedGraph, policy: str, automaton: Automaton | None = None) -> Batches:
    """Return the batches that a policy chooses for a graph, or for one recurrence.

    Args:
        automaton: automaton for policy "fsm".

    Raises:
        CompileError: there is no compiler.
        ScriptError: the policy is unknown, or compiled code cannot read the automaton.
    """
    numbers = automaton.numbers() if automaton is not None else np.zeros(0, np.int64)
    given = _GraphArrays(graph)
    sequence, stages, found = np.zeros(graph.n, np.int64), np.zeros(graph.n, np.int64), BatchesResult()
    good = library.library().vpps_batches(
        *(given.at, policy.encode(), numbers.ctypes.data, len(numbers)),
        *(sequence.ctypes.data, stages.ctypes.data, ctypes.byref(found)),
    )
    if not good:
        raise ScriptError(f"compiled code cannot read an automaton, or knows no policy {policy}; please report this")
    used = sequence[: found.n_batches].tolist()
    return Batches(used, stages, found.n_stages, found.n_steps, found.unseen)


def learn(graph: TypedGraph, settings: LearningSettings) -> Learned:
    """Learn an automaton for a typed graph (learning.h).

    Raises:
        CompileError: there is no compiler.
    """
    lib = library.library()
    began = time.perf_counter()
    given, found = _GraphArrays(graph), AutomatonResult()
    encoding = {"encoding": EncodingKind[settings.encoding.kind.upper()], "phases": settings.encoding.phases}
    names = [name for name, *_ in SettingsInput._fields_ if name not in encoding]
    given_settings = SettingsInput(**encoding, **{name: getattr(settings, name) for name in names})
    learned = lib.vpps_learn(given.at, ctypes.byref(given_settings), ctypes.byref(found))
    numbers = np.zeros(found.n_numbers, np.int64)
    lib.vpps_learned(learned, numbers.ctypes.data)
    seconds = time.perf_counter() - began
    return Learned(Automaton.from_numbers(numbers), found.trials, seconds, found.n_steps, found.n_stages, found.bound)
