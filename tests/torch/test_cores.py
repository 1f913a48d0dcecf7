"""Threads of PyTorch and virtual processors on the same cores: one warning, and a way to share."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import vpps

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/test --torch installs and tests it")

from tests.torch.networks import INPUT, Chain  # noqa: E402
from vpps.torch import cores  # noqa: E402

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A two-core machine without earlier warnings."""
    monkeypatch.setattr(cores, "usable_cores", lambda: 2)
    monkeypatch.setattr(cores, "_advised", False)
    monkeypatch.setattr(cores, "_fitting", set())
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def warnings_of(threads: int, vps: int, calls: int = 1) -> list[str]:
    """Return the warnings that calls of a module raise."""
    torch.set_num_threads(threads)
    chain = Chain()
    net = vpps.torch.Module(chain.model, vps=vps)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(calls):
            graph = vpps.Graph()
            net(graph, chain.loss(graph, graph.rows(np.ones((1, INPUT))))).backward()
    assert all(w.filename == __file__ for w in caught)
    return [str(w.message) for w in caught]


def test_too_many_threads_are_told_once() -> None:
    (said,) = warnings_of(threads=2, vps=2, calls=3)
    assert said.startswith("PyTorch's 2 threads and 2 virtual processors share 2 cores and slow each other down: ")
    assert "vpps.torch.share_cores()" in said
    assert warnings_of(threads=2, vps=2) == []


@pytest.mark.parametrize("threads, vps, policy", [(1, 2, ""), (2, 1, ""), (1, 1, ""), (2, 2, "passive")])
def test_nothing_is_said_where_they_fit(threads: int, vps: int, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle threads that sleep cause no warning either."""
    monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    assert warnings_of(threads, vps, calls=2) == []


def test_sharing() -> None:
    torch.set_num_threads(2)
    vpps.torch.share_cores()
    assert torch.get_num_threads() == 1
    vpps.torch.share_cores(2)
    assert warnings_of(threads=2, vps=2) == []


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "all", True])
def test_no_number_of_threads(wrong: Any) -> None:
    with pytest.raises(vpps.HandleError, match=r"torch_threads=.*expected an int, at least 1"):
        vpps.torch.share_cores(wrong)
