"""Learned batching policies (ED-Batch, section 2): `vpps.learn_policy` returns them and checkpoints store them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from vpps.text import counted

EncodingKind = IntEnum("EncodingKind", "BASE MAX SORT CRITICAL", start=0)  # shared with compiled code
ENCODINGS = tuple(kind.name.lower() for kind in EncodingKind)

MOST_PHASES = 1 << 20  # bounds the product of phases and vertices in compiled code


@dataclass(frozen=True, slots=True)
class Encoding:
    """Maps a frontier to a state of the automaton.

    Attributes:
        kind: "base": the types with a ready vertex. "max": those types, and the type with the most ready vertices.
            "sort": those types by descending number of ready vertices; ties go to the smaller type. "critical": those
            types in the order in which policy `critical` prefers them.
        phases: number of equal parts of a run. The state includes the current part (A.4); 1 disables this.
    """

    kind: str = "critical"
    phases: int = 1


@dataclass(frozen=True, slots=True)
class Automaton:
    """Chooses the next batch of a recurrence (ED-Batch, 2.2).

    Attributes:
        encoding: encoding of the states.
        states: states seen during learning, each with its phase, its types and the type to run next.
    """

    encoding: Encoding
    states: tuple[tuple[int, ...], ...]

    def numbers(self) -> NDArray[np.int64]:
        """Return ints for compiled code: encoding, phases, number of states; per state its length, ints, next type."""
        head = ENCODINGS.index(self.encoding.kind), self.encoding.phases, len(self.states)
        return np.fromiter(chain(head, *((len(state) - 1, *state) for state in self.states)), np.int64)

    @classmethod
    def from_numbers(cls, numbers: NDArray[np.int64]) -> Self:
        """Decode the result of `numbers`."""
        kind, phases, n, *rest = numbers.tolist()
        states, at = [], 0
        for _ in range(n):
            end = at + rest[at] + 2
            states.append(tuple(rest[at + 1 : end]))
            at = end
        return cls(Encoding(ENCODINGS[kind], phases), tuple(states))

    def check(self, n_types: int) -> None:
        """Raise TypeError or ValueError unless the automaton fits that number of types."""
        phases = self.encoding.phases
        if self.encoding.kind not in ENCODINGS or not (type(phases) is int and 0 < phases <= MOST_PHASES):
            raise ValueError(f"{self.encoding} is not a valid encoding")
        for phase, *types, chosen in self.states:
            if not all(type(x) is int and 0 <= x < n_types for x in (*types, chosen)) or chosen not in types:
                raise ValueError(f"the automaton has types outside 0 to {n_types - 1}")
            if type(phase) is not int or not 0 <= phase < phases:
                raise ValueError(f"the automaton has phases outside 0 to {phases - 1}")


@dataclass(frozen=True, slots=True)
class LearnedRecurrence:
    """An automaton and the recurrence that it was learned for.

    Attributes:
        cells: cell names for display.
        digests: digests of the cells' programs, ascending and equal in all processes. They are the automaton's types.
        automaton: learned automaton.
        batches, lower_bound: number of batches for the training graph, and a lower bound on it.

    Raises:
        TypeError, ValueError: the automaton does not fit the number of cells.
    """

    cells: tuple[str, ...]
    digests: tuple[str, ...]
    automaton: Automaton
    batches: int
    lower_bound: int

    def __post_init__(self) -> None:
        self.automaton.check(len(self.digests))

    def __str__(self) -> str:
        states, batches = counted(len(self.automaton.states), "state"), counted(self.batches, "batch", "batches")
        made = f"{batches} of the graph that it was learned from, which has at least {self.lower_bound:,}"
        return f"{', '.join(self.cells)}: {states}; {made}"


@dataclass(frozen=True, slots=True, repr=False)
class LearnedPolicy:
    """A batching policy learned by `vpps.learn_policy`. To use it: `vpps.Handle(model, policy=learned)`.

    It can be pickled. It identifies cells, in every process, by their computation and their parameters' names. Policy
    "critical" batches recurrences of other cells. In an unseen state, the learned policy chooses like "critical", or
    with one of the paper's encodings like "sufficient".

    Attributes:
        recurrences: result for each recurrence of several cells. A recurrence of one cell needs no policy.
    """

    recurrences: tuple[LearnedRecurrence, ...]

    name: ClassVar[str] = "fsm"

    def __repr__(self) -> str:
        known = "; ".join(map(str, self.recurrences)) or "no recurrence of several cells, so nothing to choose"
        return f"<vpps.LearnedPolicy: {known}>"

    def numbers(self) -> NDArray[np.int64]:
        """Return ints for compiled code: number of recurrences; for each its cell count, digests and automaton."""
        found = [np.array([len(self.recurrences)])]
        for known in self.recurrences:
            digests = np.array([int(digest, 16) for digest in known.digests], np.uint64).view(np.int64)
            found += [np.array([len(digests)]), digests, known.automaton.numbers()]
        return np.concatenate(found)

    def as_json(self) -> list[dict[str, Any]]:
        """Return the policy as JSON types."""
        return [
            {
                "cells": known.cells, "digests": known.digests, "batches": known.batches,
                "lower_bound": known.lower_bound, "encoding": known.automaton.encoding.kind,
                "phases": known.automaton.encoding.phases, "states": known.automaton.states,
            }
            for known in self.recurrences
        ]  # fmt: skip

    @classmethod
    def from_json(cls, kept: list[Mapping[str, Any]]) -> Self:
        """Decode the result of `as_json`. Raises LookupError, TypeError or ValueError if it is invalid."""
        return cls(tuple(_from_json(one) for one in kept))


def _from_json(kept: Mapping[str, Any]) -> LearnedRecurrence:
    batches, lower_bound = kept["batches"], kept["lower_bound"]
    cells, digests = tuple(kept["cells"]), tuple(kept["digests"])
    if not all(type(x) is int for x in (batches, lower_bound)) or not all(type(x) is str for x in (*cells, *digests)):
        raise TypeError("numbers and names")
    if any(not 0 <= int(digest, 16) < 1 << 64 for digest in digests):
        raise ValueError("digests")
    automaton = Automaton(Encoding(kept["encoding"], kept["phases"]), tuple(map(tuple, kept["states"])))
    return LearnedRecurrence(cells, digests, automaton, batches, lower_bound)
