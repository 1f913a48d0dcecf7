"""Random graphs of random cells on the CUDA kernel agree with the reference, race-free."""

from __future__ import annotations

import pytest

from tests.planner.test_random_graphs import check
from vpps.placement.onchip import ChipOptions

pytestmark = [pytest.mark.simt, pytest.mark.usefixtures("in_memory")]


@pytest.mark.parametrize("part", range(8))
def test_random_graphs_agree_with_the_reference(part: int) -> None:
    for number in range(5 * part, 5 * part + 5):
        check(number)


@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("groups", [2, 4])
def test_random_graphs_in_groups_agree_with_the_reference(groups: int, part: int) -> None:
    for number in range(100 + 3 * part, 103 + 3 * part):
        check(number, ChipOptions(groups=groups))
