"""Artificial timelines: virtual processors that work for given times between barriers."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from hypothesis import strategies as st

from vpps.engine.timeline import HostSpan, Timeline
from vpps.planner.native.interface import PHASES
from vpps.planner.plan import Plan
from vpps.planner.sections import Section, Stream
from vpps.runtime.recording import RECORD, Recording
from vpps.script.encode import barrier, encode, plain
from vpps.script.instructions import HEADER_WORDS, MAGIC

START = 10**15  # nanoseconds: clocks have been running for a while


class FakeRecording:
    """Replaces a `Recording` to which a kernel has written."""

    def __init__(self, rows: Sequence[tuple[int, int, int, int, int]], n_vps: int, lost: int = 0) -> None:
        self._rows = np.array(rows, RECORD)
        self.lost = [lost] * n_vps

    def records(self) -> Any:
        return self._rows


def made_timeline(
    work: Sequence[Sequence[int]],
    late: Sequence[int],
    start: int = START,
    lost: int = 0,
    host: Sequence[int] = (40, 30, 20, 10, 0),
) -> Timeline:
    """Make a launch of some virtual processors that share one stream.

    Args:
        work: nanoseconds per virtual processor and instruction; a barrier follows each but the last.
        late: nanoseconds by which each virtual processor begins after `start`.
        lost: number of records that did not fit.
        host: nanoseconds before `start` at which the host began to plan, encode, wait and launch, and was done.
    """
    steps, n_vps = len(work), len(late)
    fill = plain(encode("zero", 4, 8, 1, dst=(0, 8)))
    entry = HEADER_WORDS + n_vps
    stream, chunks = Stream(0, []), [plain([MAGIC, n_vps, 1, 0] + [entry] * n_vps)]

    def add(words: np.ndarray[Any, Any], first: int, phase: str, during: str) -> None:
        stream.sections.append(Section(stream.words, None, None, first, phase, during))
        stream.words += len(words)
        chunks.append(words)

    places: list[tuple[int, int]] = []  # (position of the instruction, position of the barrier after it)
    for step in range(steps):
        during = PHASES[step * len(PHASES) // steps]
        at = stream.words
        add(fill, 0, f"zero of 'p{step}'", during)
        if step < steps - 1:
            places.append((at, stream.words))
            add(barrier(target=n_vps * (step + 1)), step + 1, "test", during)
        else:
            places.append((at, 0))
    script = np.concatenate(chunks)
    script[3] = len(script)
    rows: list[list[tuple[int, int, int, int, int]]] = [[] for _ in range(n_vps)]
    clocks = [start + x for x in late]
    for step, (at, behind) in enumerate(places):
        for vp in range(n_vps):
            end = clocks[vp] + work[step][vp]
            rows[vp].append((clocks[vp], end, 16 * vp, entry + at, vp))
            clocks[vp] = end
        if step < steps - 1:
            last = max(clocks)
            for vp in range(n_vps):
                rows[vp].append((clocks[vp], last + vp, 0, entry + behind, vp))
                clocks[vp] = last + vp
    plan = SimpleNamespace(script=script, streams=[(entry, stream)], n_barriers=steps - 1, blocks=[])
    spans = HostSpan.between(*(start - before for before in host))
    recording = cast(Recording, FakeRecording([row for own in rows for row in own], n_vps, lost))
    return Timeline(cast(Plan, plan), recording, spans)


@st.composite
def timelines(draw: st.DrawFn) -> list[Timeline]:
    """Draw consecutive launches on the same number of virtual processors."""
    n_vps = draw(st.integers(1, 5))
    found = []
    start = START
    for _ in range(draw(st.integers(1, 3))):
        times = st.lists(st.integers(0, 10**6), min_size=n_vps, max_size=n_vps)
        made = made_timeline(draw(st.lists(times, min_size=1, max_size=6)), draw(times), start)
        found.append(made)
        start = made.end + draw(st.integers(50, 10**6))
    return found
