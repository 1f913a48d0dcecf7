"""The cuda target with an imaginary GPU that runs the real kernels: machines, and whole handles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.runtime import fake_cuda
from tests.runtime.claims import MachineClaims, Make
from tests.runtime.fake_cuda import FakeCuda
from vpps.runtime.cuda import CudaMachine

pytestmark = pytest.mark.simt


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    fake = fake_cuda.install_with_kernels(monkeypatch)
    yield fake
    assert fake.depth == 0, "a context was left current"
    assert fake.findings == []


@pytest.fixture
def make(fake: FakeCuda) -> Iterator[Make]:
    made: list[CudaMachine] = []

    def new(vps: int | None = None, **options: Any) -> CudaMachine:
        made.append(CudaMachine(vps, **options))
        return made[-1]

    yield new
    for machine in made:
        machine.close()


class TestMachine(MachineClaims):
    consecutive = 30
