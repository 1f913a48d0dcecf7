"""Recurrent layers on a simulated GPU: results, order and places of copies. Tensors of the host pose as the GPU's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.runtime import fake_cuda
from tests.runtime.fake_cuda import FakeCuda

torch = pytest.importorskip("torch")

from vpps.torch import chains, on_device  # noqa: E402
from vpps.torch.chains import Batch, Config, Grads  # noqa: E402
from vpps.torch.layouts import Layout, equal_layout  # noqa: E402
from vpps.torch.on_device import DeviceStack, DeviceTensors  # noqa: E402

pytestmark = pytest.mark.simt


class Posing(DeviceTensors):
    """Tensors of the host pose as those of the simulated GPU, and one of its streams as PyTorch's."""

    def __init__(self, fake: FakeCuda) -> None:
        self.fake, self.current = fake, fake.cuStreamCreate(1)[1]

    def stream(self, device: Any) -> int:
        return self.current

    def over(self, driver: Any, memory: Any) -> Any:
        return torch.from_numpy(np.asarray(driver.array(memory, 0, (memory.nbytes // 4,))))

    def run(self, stream: int, operators: Callable[[], object]) -> None:
        self.fake.calls.append(("operators", stream))
        self.fake._put(stream, lambda: operators() is not self)


@pytest.fixture
def posing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Posing]:
    fake = fake_cuda.install_with_kernels(monkeypatch)
    posing = Posing(fake)
    monkeypatch.setattr(on_device, "tensors", posing)
    yield posing
    assert fake.depth == 0
    assert fake.findings == []
