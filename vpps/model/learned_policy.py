"""Learned batching policies (ED-Batch, section 2): what `vpps.learn_policy` returns and checkpoints keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from vpps.text import counted

EncodingKind = IntEnum("EncodingKind", "BASE MAX SORT CRITICAL", start=0)  # compiled code has it, too
ENCODINGS = tuple(kind.name.lower() for kind in EncodingKind)

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
    """Chooses the next batch of a recurrence (ED-Batch, 2.2).

    Attributes:
        encoding: of the states.
        states: those that were seen: of each the phase, then types, then the type that is next.
    """

    encoding: Encoding
    states: tuple[tuple[int, ...], ...]

    def numbers(self) -> NDArray[np.int64]:
        """For compiled code: number of the encoding, phases, states; for each its length, its ints, the next type."""
        head = ENCODINGS.index(self.encoding.kind), self.encoding.phases, len(self.states)
        return np.fromiter(chain(head, *((len(state) - 1, *state) for state in self.states)), np.int64)

    @classmethod
    def from_numbers(cls, numbers: NDArray[np.int64]) -> Self:
        """From what `numbers` gives."""
        kind, phases, n, *rest = numbers.tolist()
        states, at = [], 0
        for _ in range(n):
            end = at + rest[at] + 2
            states.append(tuple(rest[at + 1 : end]))
            at = end
        return cls(Encoding(ENCODINGS[kind], phases), tuple(states))

    def check(self, n_types: int) -> None:
        """Raise TypeError or ValueError unless it is one for so many types."""
        phases = self.encoding.phases
        if self.encoding.kind not in ENCODINGS or not (type(phases) is int and 0 < phases <= MOST_PHASES):
            raise ValueError(f"{self.encoding} is no encoding")
        for phase, *types, chosen in self.states:
            if not all(type(x) is int and 0 <= x < n_types for x in (*types, chosen)) or chosen not in types:
                raise ValueError(f"an automaton of other types than {n_types}")
            if type(phase) is not int or not 0 <= phase < phases:
                raise ValueError(f"an automaton of other phases than {phases}")


@dataclass(frozen=True, slots=True)
class LearnedRecurrence:
    """An automaton and the recurrence that it was learned for.

    Attributes:
        cells: names, for people.
        digests: of their programs, rising: the types of the automaton. They are the same in all processes.
        automaton: what was learned.
        batches, lower_bound: of the graph that it was learned from.

    Raises:
        TypeError, ValueError: the automaton is not one for so many cells.
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
    """A batching policy that `vpps.learn_policy` has learned: `vpps.Handle(model, policy=it)`.

    It can be pickled. It knows cells by what they compute and by the names of their parameters, in every process.
    Recurrences of other cells are batched as policy "critical" does. In a state that was not seen it chooses as
    "critical" would; with one of the paper's encodings, as "sufficient" would.

    Attributes:
        recurrences: what was learned, for each recurrence of several cells; of others there is nothing to choose.
    """

    recurrences: tuple[LearnedRecurrence, ...]

    name: ClassVar[str] = "fsm"

    def __repr__(self) -> str:
        known = "; ".join(map(str, self.recurrences)) or "no recurrence of several cells, so nothing to choose"
        return f"<vpps.LearnedPolicy: {known}>"

    def numbers(self) -> NDArray[np.int64]:
        """For compiled code: how many there are; of each the number of cells, their digests, the automaton."""
        found = [np.array([len(self.recurrences)])]
        for known in self.recurrences:
            digests = np.array([int(digest, 16) for digest in known.digests], np.uint64).view(np.int64)
            found += [np.array([len(digests)]), digests, known.automaton.numbers()]
        return np.concatenate(found)

    def as_json(self) -> list[dict[str, Any]]:
        """As JSON types."""
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
        """From what `as_json` gave. Raises LookupError, TypeError, ValueError: it is something else."""
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
