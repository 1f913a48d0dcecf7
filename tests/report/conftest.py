"""Targets whose launches are recorded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime import fake_cuda
from tests.runtime.fake_cuda import FakeCuda

TARGETS = [pytest.param(t, marks=pytest.mark.cpu if t == "cpu" else pytest.mark.simt) for t in ("cpu", "simt", "cuda")]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    fake = fake_cuda.install_with_kernels(monkeypatch)
    yield fake
    assert fake.findings == [], "races, for one"


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> str:
    """Return the target's name; cuda is a simulated GPU."""
    if request.param == "cuda":
        request.getfixturevalue("fake")
    return str(request.param)
