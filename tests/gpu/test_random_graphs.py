"""200 random graphs agree with the reference on a GPU, and a few with their weights on the chip."""

from __future__ import annotations

import pytest

from tests import comparison
from tests.gpu.conftest import with_default
from tests.planner.test_random_graphs import check
from vpps.runtime.driver import Properties

pytestmark = pytest.mark.gpu


@pytest.mark.usefixtures("in_memory")
@pytest.mark.parametrize("part", range(8))  # one part per process
def test_with_weights_in_memory(part: int) -> None:
    for number in range(25 * part, 25 * part + 25):
        check(number)


@pytest.mark.usefixtures("roomy_kernels")
@pytest.mark.parametrize("part", range(8))
def test_with_weights_on_the_chip(part: int, gpu: Properties, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every graph needs its own kernel, so there are few graphs."""
    compare = comparison.assert_agrees_with_reference
    monkeypatch.setattr(compare, "__defaults__", with_default(compare, "vp_counts", (gpu.sms,)))
    monkeypatch.setattr(comparison, "PAPER_VP_COUNTS", (gpu.sms,))
    for number in range(2 * part, 2 * part + 2):
        check(number)
