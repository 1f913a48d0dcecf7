"""PyTorch uses one thread: with more, these small networks mostly wait for each other's threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import vpps


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def chain() -> Any:
    """Return a network; its Module is `net`."""
    from tests.torch.networks import Chain

    return Chain()


@pytest.fixture
def net(chain: Any) -> Any:
    return vpps.torch.Module(chain.model, vps=1)


@pytest.fixture
def posing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a simulated GPU, `tests.torch.posing.Posing`."""
    from tests.torch.posing import posing_as_gpu

    yield from posing_as_gpu(monkeypatch)
