"""Random graphs of random cells on the CUDA kernel agree with the reference, race-free."""

from __future__ import annotations

import pytest

from tests.plan.test_random_graphs import check

pytestmark = [pytest.mark.simt, pytest.mark.usefixtures("in_memory")]


@pytest.mark.parametrize("part", range(8))
def test_random_graphs_agree_with_the_reference(part: int) -> None:
    for number in range(5 * part, 5 * part + 5):
        check(number)
