"""On fixed graphs, planner and recorder do as much work as performance.json records."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.performance import COMMAND, TOLERANCE, changes, counted, key, reason_to_skip, recorded
from vpps.graph import recorder
from vpps.kernel.prebuilt import HostLibrary
from vpps.planner.native import library


@pytest.mark.cpu
@pytest.mark.parametrize("described", [library.described, recorder.described], ids=["planner", "recorder"])
def test_the_work_is_what_it_was(described: Callable[[], HostLibrary]) -> None:
    if reason := reason_to_skip():
        pytest.skip(reason)
    name = key(described())
    if name not in recorded():
        pytest.skip(f"tests/performance.json has no counts of the {name}; `{COMMAND}` adds them")
    found = list(changes(recorded()[name], counted()[name], TOLERANCE))
    assert not found, "\n".join(
        [f"the work of the {name} has changed; if that is intended, run `{COMMAND}` and commit the counts:", *found]
    )


@pytest.mark.host
def test_changes_above_three_percent_are_reported_by_graph() -> None:
    before = {"chain": [1000, 80], "tree": [1000, 80], "lattice": [1000, 0]}
    now = {"chain": [970, 82], "tree": [1040, 80], "lattice": [1000, 0]}
    assert list(changes(before, now, TOLERANCE)) == ["tree: 1,000 -> 1,040 blocks (+4.0 %), 80 -> 80 bytes (+0.0 %)"]
