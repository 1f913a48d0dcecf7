"""Products of the CUDA kernel that round agree with the reference that rounds, race-free, with weights in memory."""

from __future__ import annotations

import pytest

from tests.ops import test_rounded_products as elsewhere
from tests.ops.test_rounded_products import *  # noqa: F403

pytestmark = [pytest.mark.simt, pytest.mark.usefixtures("in_memory")]


@pytest.fixture(autouse=True)
def all_precisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """3xtf32 is as float32 where weights lie in memory."""
    monkeypatch.setattr(elsewhere, "PRECISIONS", elsewhere.PRECISIONS | {"tf32": (1e-5, 2e-3), "3xtf32": (0, 1e-5)})
