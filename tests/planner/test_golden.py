"""Scripts match golden.json: a fifth of its rows, or all of them (which takes minutes) if VPPS_TEST_GOLDEN=all."""

from __future__ import annotations

import os

import pytest

from tests.planner.golden import NAMES, golden, hashed
from tests.planner.launches import parse

EVERY = 1 if os.environ.get("VPPS_TEST_GOLDEN") == "all" else 5
PARTS = 9


@pytest.mark.cpu
@pytest.mark.parametrize("part", range(PARTS))
def test_scripts_are_those_that_they_were(part: int) -> None:
    assert list(golden()) == NAMES
    for number, name in list(enumerate(NAMES))[part::PARTS]:
        rows = list(golden()[name].items())
        for text, expected in rows[number % EVERY :: EVERY]:
            assert str(parse(text)) == text
            assert hashed(name, parse(text)) == expected, f"{name}: {text}"
