"""Random graphs of random cells on the CUDA kernel agree with the reference, race-free."""

from __future__ import annotations

import pytest

from tests import comparison
from tests.gpu.conftest import with_default
from tests.planner.test_random_graphs import check
from vpps.placement.onchip import ChipOptions

pytestmark = pytest.mark.simt


@pytest.fixture(autouse=True)
def one_and_three_virtual_processors(in_memory: None, monkeypatch: pytest.MonkeyPatch) -> None:
    compare = comparison.assert_agrees_with_reference
    monkeypatch.setattr(compare, "__defaults__", with_default(compare, "vp_counts", (1, 3)))


@pytest.mark.parametrize("part", range(8))
def test_random_graphs_agree_with_the_reference(part: int) -> None:
    for number in range(5 * part, 5 * part + 5):
        check(number)


@pytest.mark.parametrize("precision, part", [("bf16", 0), ("tf32", 1)])
def test_random_graphs_whose_products_round_agree_with_the_reference(precision: str, part: int) -> None:
    for number in range(5 * part, 5 * part + 5):
        check(number, precision=precision)


@pytest.mark.parametrize("groups, part", [(2, 0), (4, 1)])
def test_random_graphs_in_groups_agree_with_the_reference(groups: int, part: int) -> None:
    for number in range(100 + 3 * part, 103 + 3 * part):
        check(number, ChipOptions(groups=groups))
