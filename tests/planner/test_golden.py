"""Planners write the scripts that they wrote: for every example some of those of golden.py; VPPS_TEST_GOLDEN=all, which
takes minutes, for all of them."""

from __future__ import annotations

import json
import os

import pytest

from tests.planner.golden import FILE, NAMES, configurations, hashed
from tests.planner.launches import MACHINES

EVERY = 1 if os.environ.get("VPPS_TEST_GOLDEN") == "all" else 14
PARTS = 9


@pytest.mark.cpu
@pytest.mark.parametrize("part", range(PARTS))
def test_scripts_are_those_that_they_were(part: int) -> None:
    golden = json.loads(FILE.read_text())
    assert list(golden) == NAMES
    for number, name in list(enumerate(NAMES))[part::PARTS]:
        expected = golden[name].split()
        given = list(configurations(name))
        assert len(expected) == len(given) >= 3 * len(MACHINES)
        for k in range(number % EVERY, len(given), EVERY):
            assert hashed(name, given[k]) == expected[k], f"{name}: {given[k]}"
