"""Conversion of thread blocks' stamps to records: checked by hand, with clocks of different rates and origins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vpps.runtime.stamps import STAMP, TRACK, SharedClock, StampedRecording

pytestmark = pytest.mark.host


class Block:
    """A virtual processor's stamps in memory, between two clock pairs."""

    def __init__(self, start: int, cycles_per_ns: float) -> None:
        self.start = start
        self.cycles_per_ns = cycles_per_ns
        self.stamps: list[tuple[int, int, int]] = []
        self.track: tuple[Any, Any, int] = ((0, 0), (0, 0), 0)

    def cycles(self, ns: int) -> int:
        return self.start + round(ns * self.cycles_per_ns)

    def run(self, begun: int, instructions: list[tuple[int, int, int]], ended: int) -> None:
        """Add a launch. Instructions: (nanoseconds at the beginning, position, floats); the last ends 10 ns before
        it."""
        floats = [0, *(moved for _, _, moved in instructions)]
        positions = [*(position for _, position, _ in instructions), 999]
        times = [*(ns for ns, _, _ in instructions), ended - 10]
        self.stamps += [(self.cycles(t), p, f) for t, p, f in zip(times, positions, floats, strict=True)]
        self.track = (begun, self.cycles(begun)), (ended, self.cycles(ended)), len(self.stamps)


def filled(recording: StampedRecording, blocks: list[Block]) -> StampedRecording:
    memory = np.zeros(recording.words, np.uint32)
    end = recording.track_bytes // 4
    tracks, stamps = memory[:end].view(TRACK), memory[end:].view(STAMP).reshape(-1, len(blocks))
    for vp, block in enumerate(blocks):
        tracks[vp] = block.track
        for k, stamp in enumerate(block.stamps[: recording.room]):
            stamps[k, vp] = stamp
    recording.fill(memory[: recording.used_bytes(memory[:end]) // 4])
    return recording


def test_of_clocks_that_differ_are_on_one() -> None:
    fast, slow = Block(10**15, 1.9), Block(7, 0.6)
    fast.run(1000, [(1100, 40, 3), (1500, 46, 0)], 3000)
    slow.run(1040, [(1200, 40, 0), (1700, 60, 5), (2500, 66, 0)], 3010)
    recording = filled(StampedRecording(2, 8), [fast, slow])
    assert recording.span == (1000, 3010)
    recording.align(10**6)
    records = recording.records()
    assert recording.lost == [0, 0]
    assert records["vp"].tolist() == [0, 0, 1, 1, 1]
    assert records["position"].tolist() == [40, 46, 40, 60, 66]
    assert records["bytes"].tolist() == [12, 0, 0, 20, 0]
    np.testing.assert_allclose(records["start"] - 10**6, [1100, 1500, 1200, 1700, 2500], atol=2)
    np.testing.assert_allclose(records["end"] - 10**6, [1500, 2990, 1700, 2500, 3000], atol=2)


@pytest.mark.parametrize("capacity, kept, lost", [(0, 0, 4), (2, 2, 2), (3, 3, 1), (4, 4, 0)])
def test_without_room_are_counted(capacity: int, kept: int, lost: int) -> None:
    block = Block(0, 1.0)
    block.run(0, [(10 * k, 40 + k, 0) for k in range(1, 5)], 100)
    recording = filled(StampedRecording(1, capacity), [block])
    assert recording.lost == [lost]
    assert recording.records()["position"].tolist() == [41, 42, 43, 44][:kept]


def test_of_a_launch_that_did_nothing_are_none() -> None:
    recording = StampedRecording(3, 5)
    assert (recording.span, recording.lost, len(recording.records())) == (None, [0, 0, 0], 0)
    filled(recording, [Block(0, 1.0)] * 3)
    assert (recording.span, recording.lost, len(recording.records())) == (None, [0, 0, 0], 0)


def test_of_a_clock_that_stands_still_are_all_one_moment() -> None:
    block = Block(44, 0.0)
    block.run(100, [(100, 40, 0), (100, 46, 0)], 200)
    recording = filled(StampedRecording(1, 4), [block])
    assert recording.records()["start"].tolist() == [100, 100]


class TestSharedClock:
    def test_takes_the_tightest_bound(self) -> None:
        """The GPU's clock is 1000 behind the host's."""
        clock = SharedClock()
        assert clock.offset(50, 80, asked=1000, seen=1200) == 950  # the launch took 50 to begin
        assert clock.offset(205, 280, asked=1200, seen=1290) == 995
        assert clock.offset(400, 480, asked=1300, seen=1500) == 995  # this launch had waited for the previous launch

    def test_follows_clocks_that_drift_apart(self) -> None:
        clock = SharedClock()
        clock.offset(0, 90, asked=995, seen=1100)
        assert clock.offset(2000, 2090, asked=2900, seen=3000) == 900  # 995 is after its observed end
        assert clock.offset(9000, 9090, asked=11_000, seen=11_100) == 2000
