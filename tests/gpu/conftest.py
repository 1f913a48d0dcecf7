"""The gpu tier: all tests here need an NVIDIA GPU, and are skipped with the reason without one.

The users' case comes first: a Tree-LSTM with fused cells. All tests except those of single ops fuse cells. Compiling
takes longer than everything else. So tests of ops and optimizers keep weights in memory and use generic instructions: a
single kernel with all of them runs every model. Tests of weights on the chip have a kernel per case.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import comparison, kernels
from tests.model import test_optim
from vpps.runtime.cuda import CudaMachine
from vpps.runtime.driver import Properties, usable_gpu, why_cuda_is_unusable

FOLDER = Path(__file__).parent
FIRST = FOLDER / "test_tree_lstm.py"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the most informative tests first. Without a GPU, skip one test per file and drop its other tests."""
    items.sort(key=lambda item: item.path != FIRST)
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
    """Return the GPU's properties."""
    return usable_gpu()


@pytest.fixture(autouse=True)
def on_cuda(gpu: Properties, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run handles without a target on the GPU with all passes, as for users; also in child processes."""
    monkeypatch.setenv("VPPS_TARGET", "cuda")
    monkeypatch.delenv("VPPS_PASSES", raising=False)


def with_default(function: Callable[..., Any], name: str, value: Any) -> tuple[Any, ...]:
    """Return the defaults of a function's parameters, with a different default for `name`."""
    parameters = inspect.signature(function).parameters.values()
    assert any(p.name == name and p.default is not p.empty for p in parameters)
    return tuple(value if p.name == name else p.default for p in parameters if p.default is not p.empty)


@pytest.fixture
def in_memory(gpu: Properties, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep weights in memory, and compare results for all virtual processors and for 7, with both schedules. Cells are
    not fused: every cell would need a separate kernel with its tails."""
    monkeypatch.setenv("VPPS_PASSES", "-fusion")
    kernels.widen(monkeypatch, CudaMachine, kernels.know_everything_in_memory)
    kernels.keep_weights_in_memory(monkeypatch)
    compare = comparison.assert_agrees_with_reference
    monkeypatch.setattr(compare, "__defaults__", with_default(compare, "vp_counts", (gpu.sms, 7)))
    monkeypatch.setattr(comparison, "PAPER_VP_COUNTS", (gpu.sms,))
    monkeypatch.setattr(test_optim, "VP_COUNTS", (gpu.sms, 7))


@pytest.fixture
def roomy_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build kernels with every end of a launch from the start, so that none is compiled a second time."""
    kernels.widen(monkeypatch, CudaMachine, kernels.know_the_end_of_launches)
