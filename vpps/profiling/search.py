"""Searches the space of configurations: the full grid where it is small, axis after axis where it is large."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from vpps.engine.configuration import Configuration
from vpps.profiling.measure import Measured, best_of
from vpps.tuning.candidates import (
    MOST_COMBINED,
    Candidate,
    Change,
    TunedChip,
    applied,
    checked,
    combined,
    n_combined,
    one_by_one,
    without_repetitions,
)

Measure = Callable[[Sequence[Measured]], None]


@dataclass(frozen=True, slots=True)
class Row:
    """A configuration and how it compares.

    Attributes:
        measured: its times, or why there are none.
        ratio: time of the default, measured in the same turns, over its own; 0 where it does not run.
    """

    measured: Measured
    ratio: float


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """What a search has found.

    Attributes:
        rows: all configurations, the default first; of one that was measured for several axes the last.
        best: one of them; the default, where nothing is clearly faster.
        repeated: configurations that were left out because they give the same kernel as another one.
        left_out: configurations beyond the limit.
        axes: those searched one after the other; empty for a full grid.
        combinations: size of the full grid.
    """

    rows: tuple[Row, ...]
    best: Row
    repeated: int
    left_out: int
    axes: tuple[str, ...]
    combinations: int

    @property
    def variation(self) -> float:
        """How much times of one and the same batch vary (`Measured.variation`), of the default or of the best."""
        return max(self.rows[0].measured.variation, self.best.measured.variation)


def candidates_of(
    base: Configuration, axes: Mapping[str, Sequence[Change]], chip: TunedChip | None, limit: int | None = None
) -> tuple[list[Candidate], int, int]:
    """Candidates without measuring any: of the full grid, or where that is large, of one axis at a time.

    Returns:
        Candidates, how many gave the same kernel as another one, how many are beyond the limit.
    """
    grid = combined if n_combined(axes) <= MOST_COMBINED else one_by_one
    found, repeated = checked(grid(base, axes), chip)
    return found[:limit], repeated, len(found[limit:]) if limit is not None else 0


def search(
    base: Configuration,
    axes: Mapping[str, Sequence[Change]],
    measure: Measure,
    chip: TunedChip | None = None,
    limit: int | None = None,
) -> SearchOutcome:
    """Measure configurations, no more than `limit`, and find the fastest.

    Args:
        measure: adds times, or the reason why there are none, to those without a reason; the first is the default.
        chip: model and GPU; None on cpu.
    """
    size = n_combined(axes)
    if size <= MOST_COMBINED:
        found, repeated, left_out = candidates_of(base, axes, chip, limit)
        rows = _rows(found, measure)
        return SearchOutcome(tuple(rows), _best(rows), repeated, left_out, (), size)
    kept: dict[str, Row] = {}
    best, repeated, left_out = base, 0, 0
    for changes in axes.values():
        stage, again = checked(without_repetitions([base, best, *(applied(best, c) for c in changes)]), chip)
        repeated += again
        room = None if limit is None else max(2, limit - len(kept))
        left_out += 0 if room is None else len(stage[room:])
        rows = _rows(stage[:room], measure)
        kept |= {repr(row.measured.configuration): row for row in rows}
        best = _best(rows).measured.configuration
    return SearchOutcome(tuple(kept.values()), kept[repr(best)], repeated, left_out, tuple(axes), size)


def _rows(candidates: Sequence[Candidate], measure: Measure) -> list[Row]:
    """Measured candidates, and with their reasons those that cannot be had."""
    found = [Measured(c.configuration, reason=c.reason) for c in candidates]
    measure(found)
    return [Row(m, m.ratio(found[0])) for m in found]


def _best(rows: Sequence[Row]) -> Row:
    best = best_of([row.measured for row in rows])
    return next(row for row in rows if row.measured is best)
