"""The gpu tier: everything here needs an NVIDIA GPU, and is skipped, saying why, where there is none."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import comparison
from vpps.runtime.driver import Properties, usable_gpu, why_cuda_is_unusable

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a GPU, one test of every file is skipped and the others are not mentioned."""
    reason = why_cuda_is_unusable()
    if reason is None:
        return
    files: set[Path] = set()
    left_out = []
    for item in items:
        if item.path.parent == FOLDER:
            if item.path in files:
                left_out.append(item)
            else:
                item.add_marker(pytest.mark.skip(reason=reason))
            files.add(item.path)
    config.hook.pytest_deselected(items=left_out)
    dropped = set(map(id, left_out))
    items[:] = [item for item in items if id(item) not in dropped]


@pytest.fixture(scope="session")
def gpu() -> Properties:
    """The GPU."""
    return usable_gpu()


@pytest.fixture(autouse=True)
def on_cuda(gpu: Properties, monkeypatch: pytest.MonkeyPatch) -> None:
    """Handles that name no target run on the GPU, those of other processes too."""
    monkeypatch.setenv("VPPS_TARGET", "cuda")


def with_default(function: Callable[..., Any], name: str, value: Any) -> tuple[Any, ...]:
    """The defaults of a function's parameters, with another one for `name`."""
    parameters = inspect.signature(function).parameters.values()
    assert any(p.name == name and p.default is not p.empty for p in parameters)
    return tuple(value if p.name == name else p.default for p in parameters if p.default is not p.empty)


@pytest.fixture(params=["all VPs twice", "few VPs", "paper"])
def configuration(request: pytest.FixtureRequest, gpu: Properties, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which numbers of virtual processors and which schedule `assert_agrees_with_reference` compares.

    It demands equal bits of everything that it compares, and a GPU promises those for one configuration only.
    """
    vector, paper = {
        "all VPs twice": ((gpu.sms, gpu.sms), ()),
        "few VPs": ((7,), ()),
        "paper": ((), (gpu.sms,)),
    }[request.param]
    compare = comparison.assert_agrees_with_reference
    monkeypatch.setattr(compare, "__defaults__", with_default(compare, "vp_counts", vector))
    monkeypatch.setattr(comparison, "PAPER_VP_COUNTS", paper)
