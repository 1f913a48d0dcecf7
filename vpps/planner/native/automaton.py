"""Finite-state machines that choose the next batch (ED-Batch, 2.2), as they are kept, how they are learned, and what
comes of that; `planner/native/automaton.h` runs them, `learning.h` learns them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Self

import numpy as np

from vpps.planner.native.policy_table import ENCODINGS
from vpps.record.arrays import Ints

State = tuple[int, ...]
"""The phase, then types."""

MOST_PHASES = 1 << 20  # compiled code multiplies them by vertices


@dataclass(frozen=True, slots=True)
class Encoding:
    """What of a frontier is a state.

    Attributes:
        kind: "base": the types that have a ready vertex. "max": those, and the one that has the most. "sort": those by
            falling number of ready vertices. Of equal numbers the smaller type comes first. "critical": those in the
            order in which policy `critical` prefers them.
        phases: which so-manieth part of the vertices has run belongs to the state, too (A.4); 1: it does not.
    """

    kind: str = "critical"
    phases: int = 1


@dataclass(frozen=True, slots=True)
class Automaton:
    """A learned policy for one recurrence.

    Attributes:
        encoding: of the states.
        table: the type that is next in each state that was seen.
    """

    encoding: Encoding
    table: Mapping[State, int]

    def numbers(self) -> Ints:
        """For compiled code: number of the encoding, phases, states; for each its length, its ints, the next type."""
        head = ENCODINGS.index(self.encoding.kind), self.encoding.phases, len(self.table)
        entries = ((len(state), *state, a) for state, a in self.table.items())
        return np.fromiter(chain(head, chain.from_iterable(entries)), np.int64)

    @classmethod
    def from_numbers(cls, numbers: Ints) -> Self:
        """From what `numbers` gives."""
        kind, phases, n, *rest = numbers.tolist()
        table: dict[State, int] = {}
        at = 0
        for _ in range(n):
            end = at + 1 + rest[at]
            table[tuple(rest[at + 1 : end])] = rest[end]
            at = end + 1
        return cls(Encoding(ENCODINGS[kind], phases), table)

    def as_json(self) -> dict[str, Any]:
        """As JSON types."""
        states = [[*state, a] for state, a in self.table.items()]
        return {"encoding": self.encoding.kind, "phases": self.encoding.phases, "states": states}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any], n_types: int) -> Self:
        """From what `as_json` gave. Raises LookupError, TypeError, ValueError: it is none of ours, or of other cells.

        Args:
            n_types: of the recurrence.
        """
        encoding = Encoding(kept["encoding"], kept["phases"])
        table = {tuple(state): a for *state, a in kept["states"]}
        phases = encoding.phases
        if encoding.kind not in ENCODINGS or not (type(phases) is int and 0 < phases <= MOST_PHASES):
            raise ValueError("an automaton of an unknown encoding")
        for (phase, *types), a in table.items():
            if not all(type(x) is int for x in (phase, a)) or not 0 <= phase < phases:
                raise ValueError("an automaton of no phases")
            if a not in types or not all(type(x) is int and 0 <= x < n_types for x in types):
                raise ValueError("an automaton of other types")
        return cls(encoding, table)


@dataclass(frozen=True, slots=True)
class LearningSettings:
    """Hyper-parameters of learning.

    Attributes:
        encoding: of states.
        alpha: of the reward: -1 for each batch, and `alpha` times the part of its type's first vertices that it runs
            (ED-Batch, equation 1).
        horizon: N, over how many batches rewards are summed before values stand for the rest.
        rate: by how much of the difference a value moves.
        epsilon, least_epsilon, decay: probability of any action in the first trial, in the last ones, and the factor
            from trial to trial.
        trials: at most.
        check_every: trials between two trials of the greedy policy; where it attains the lower bound, learning ends.
        seed: of chance.
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
    """What came of it.

    Attributes:
        automaton: the best one.
        trials: how many were made.
        seconds: that took.
        batches, stages: of the graph with it.
        lower_bound: of batches.
    """

    automaton: Automaton
    trials: int
    seconds: float
    batches: int
    stages: int
    lower_bound: int
