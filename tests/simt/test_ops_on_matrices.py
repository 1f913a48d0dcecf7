"""Ops on computed matrices of the CUDA kernel agree with their references, race-free."""

from __future__ import annotations

import pytest

from tests.ops import test_matrices as elsewhere
from tests.ops.test_matrices import *  # noqa: F403
from tests.simt.conftest import with_default

pytestmark = [pytest.mark.simt, pytest.mark.usefixtures("in_memory")]


@pytest.fixture(autouse=True)
def fewer_virtual_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elsewhere.check, "__defaults__", with_default(elsewhere.check, "vp_counts", (3,)))
    monkeypatch.setattr(elsewhere, "MANY", (2, 13))
