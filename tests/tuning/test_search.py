"""How a space is searched, with imaginary times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from vpps.compiler.passes import Passes
from vpps.engine.configuration import Configuration
from vpps.profiling.measure import Measured, best_of
from vpps.profiling.search import candidates_of, search
from vpps.tuning.candidates import Change

pytestmark = pytest.mark.host

BASE = Configuration(passes=Passes())
SMALL: dict[str, list[Change]] = {
    "vps": [{}, {"vps": 1}, {"vps": 2}],
    "policy": [{}, {"policy": "depth"}],
}
LARGE: dict[str, list[Change]] = {
    "vps": [{}, *({"vps": n} for n in range(1, 40))],
    "policy": [{}, {"policy": "depth"}],
}


def measured(configuration: Configuration, *turns: float) -> Measured:
    return Measured(configuration, times=np.array([[t, t] for t in turns]))


class Stopwatch:
    """Measures in imaginary time: 2 virtual processors are the best, the more with policy depth."""

    def __init__(self) -> None:
        self.stages: list[list[str]] = []

    def __call__(self, found: Sequence[Measured]) -> None:
        self.stages.append([m.configuration.describe() for m in found])

        def seconds(c: Configuration) -> float:
            return (10 + abs((c.vps or 5) - 2)) * (0.5 if c.policy == "depth" else 1)

        for m in found:
            m.times = np.full((3, 2), seconds(m.configuration))


def test_a_small_space_is_measured_as_a_whole() -> None:
    stopwatch = Stopwatch()
    outcome = search(BASE, SMALL, stopwatch)
    (stage,) = stopwatch.stages
    assert len(stage) == 6
    assert outcome.best.measured.configuration.describe() == "vps 2, policy depth"
    assert outcome.best.ratio == pytest.approx(13 / 5)
    assert (outcome.axes, outcome.combinations, outcome.left_out) == ((), 6, 0)


def test_of_a_large_space_axes_are_searched_one_after_the_other() -> None:
    stopwatch = Stopwatch()
    outcome = search(BASE, LARGE, stopwatch)
    assert (outcome.axes, outcome.combinations) == (("vps", "policy"), 80)
    assert [len(stage) for stage in stopwatch.stages] == [40, 3]
    assert stopwatch.stages[1] == ["default", "vps 2", "vps 2, policy depth"], "the best so far, beside the default"
    assert outcome.best.measured.configuration.describe() == "vps 2, policy depth"
    assert outcome.best in outcome.rows


def test_no_more_are_measured_than_asked_for() -> None:
    stopwatch = Stopwatch()
    outcome = search(BASE, SMALL, stopwatch, limit=2)
    assert stopwatch.stages == [["default", "policy depth"]]
    assert outcome.left_out == 4
    found, _, left_out = candidates_of(BASE, LARGE, None, 3)
    assert (len(found), left_out) == (3, 38)


def test_what_does_not_run_is_kept_with_its_reason() -> None:
    def fails(found: Sequence[Measured]) -> None:
        for m in found:
            m.times, m.reason = (None, "no room") if m.configuration.vps else (np.ones((1, 2)), "")

    outcome = search(BASE, SMALL, fails)
    assert outcome.best.measured.configuration.vps is None
    assert [row.measured.reason for row in outcome.rows].count("no room") == 4
    assert [row.ratio for row in outcome.rows if row.measured.reason] == [0.0] * 4


class TestBest:
    def test_is_the_default_unless_something_is_clearly_faster(self) -> None:
        default, other = measured(BASE, 1.0, 1.0), measured(Configuration(vps=1), 0.99, 0.99)
        assert best_of([default, other]) is default
        assert best_of([default, measured(Configuration(vps=1), 0.9, 0.9)]) is not default

    def test_is_the_fastest_of_the_others_where_the_default_does_not_run(self) -> None:
        slow, fast = measured(Configuration(vps=1), 2.0, 2.0), measured(Configuration(vps=3), 1.0, 1.0)
        assert best_of([Measured(BASE, reason="it spills"), slow, fast]) is fast

    def test_is_faster_in_most_turns(self) -> None:
        default = measured(BASE, 1.0, 1.0, 1.0, 9.0)
        lucky = measured(Configuration(vps=1), 0.5, 0.5, 1.1, 10.0)
        assert lucky.seconds < default.seconds
        assert best_of([default, lucky]) is default

    def test_compares_batches_with_themselves(self) -> None:
        """A batch of large graphs takes longer in any configuration."""
        default = Measured(BASE, times=np.array([[1.0, 10.0, 30.0]] * 3))
        other = Measured(Configuration(vps=1), times=np.array([[0.5, 9.0, 29.0], [0.5, 9.0, 29.0], [0.5, 9.5, 29.0]]))
        assert other.ratio(default) == pytest.approx(10 / 9)
        assert best_of([default, other]) is other
        assert default.variation == 0.0, "they take what they take"
        assert Measured(BASE, times=np.array([[1.0], [1.5], [2.0]])).variation == pytest.approx(1 / 3)
