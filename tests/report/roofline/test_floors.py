"""Floors: seconds that follow from amounts and rates, reckoned by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.report.roofline.machines import KB, MACHINE, point, work
from vpps.report.roofline.floors import floor_of
from vpps.report.roofline.peaks import Bandwidth
from vpps.report.roofline.work import PHASES, Touched

pytestmark = pytest.mark.host


class TestBandwidth:
    def test_is_the_measured_one_at_measured_sizes_and_between_them_by_the_logarithm(self) -> None:
        curve = Bandwidth((1 * KB, 100 * KB), (4e9, 1e9))
        assert curve.at(1 * KB) == 4e9
        assert curve.at(100 * KB) == 1e9
        assert curve.at(10 * KB) == pytest.approx(2.5e9)

    def test_ends_where_measurements_do(self) -> None:
        curve = Bandwidth((1 * KB, 100 * KB), (4e9, 1e9))
        assert curve.at(0) == curve.nearest == 4e9
        assert curve.at(1e12) == curve.farthest == 1e9

    def test_of_a_disturbed_measurement_is_mended(self) -> None:
        """More data do not come faster: a low rate before a high one was something else's fault."""
        curve = Bandwidth.measured((1.0, 2.0, 3.0), [5.0, 1.0, 3.0])
        assert curve.rates == (5.0, 3.0, 3.0)


class TestFloor:
    def test_of_a_phase_whose_bytes_count(self) -> None:
        forward = floor_of(work(activations=9000), MACHINE).phases["forward"]
        assert forward.compute == pytest.approx(10_000 / 1e9)
        # Once from where everything lies, again: matrices from where they fit, the rest from the nearest cache.
        assert forward.weights == pytest.approx(1000 / 1e9 + 2000 / 5e8 + 2000 / 4e9)
        assert forward.activations == pytest.approx(4000 / 5e8 + 5000 / 4e9)
        assert forward.bound == "memory"
        assert forward.seconds == forward.memory == forward.weights + forward.activations

    def test_of_a_phase_whose_operations_count(self) -> None:
        forward = floor_of(work(flops=1_000_000), MACHINE).phases["forward"]
        assert (forward.bound, forward.seconds) == ("compute", pytest.approx(1e-3))

    def test_of_what_an_earlier_phase_has_touched_is_that_of_a_nearer_place(self) -> None:
        plain = work()
        again = replace(plain, fresh={phase: Touched(0, 0, 0) for phase in PHASES})
        far, near = (floor_of(w, MACHINE).phases["backward"].memory for w in (plain, again))
        rate = MACHINE.triad.at(7000)
        assert near < far
        assert near == pytest.approx(1000 / MACHINE.read.at(7000) + 2000 / rate + 4000 / rate + 2000 / 4e9)

    def test_of_a_launch_adds_phases_barriers_and_the_launch(self) -> None:
        floor = floor_of(work(), MACHINE)
        assert floor.barriers == pytest.approx(10 * 1e-6)
        assert floor.launch == 1e-5
        assert floor.seconds == pytest.approx(4 * floor.phases["update"].seconds + 2e-5)


class TestPoint:
    def test_is_measured_over_its_floor(self) -> None:
        found = point(8, seconds=2e-3)
        assert found.ratio == pytest.approx(2e-3 / found.floor.seconds)
        assert found.floor.seconds == pytest.approx(floor_of(work(activations=9000), MACHINE).seconds)
        assert found.phases[0].ratio == pytest.approx(4e-4 / found.phases[0].floor.seconds)
        assert found.as_json()["gflops_per_second"] == pytest.approx(40_000 / 2e-3 / 1e9)
        assert found.intensity == pytest.approx(40_000 / (4 * 14_000))

    def test_names_the_phase_with_most_time_above_its_floor(self) -> None:
        found = point(8, seconds=2e-3)
        slow = replace(found.phases[2], seconds=1.0)
        farthest = replace(found, phases=(*found.phases[:2], slow, found.phases[3])).farthest
        assert farthest is slow

    def test_without_times_has_no_ratio(self) -> None:
        found = point(8, seconds=None)
        assert (found.ratio, found.farthest, found.as_json()["seconds"]) == (None, None, None)
