"""A simulated GPU for PyTorch: tensors of the host pose as the GPU's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

import vpps
from tests.runtime import fake_cuda
from tests.runtime.fake_cuda import FakeCuda
from vpps.torch import copies
from vpps.torch.chains import Config
from vpps.torch.copies import DeviceTensors
from vpps.torch.on_device import DeviceRecurrentStack


class Posing(DeviceTensors):
    """Tensors of the host pose as those of the simulated GPU, and one of its streams as PyTorch's."""

    def __init__(self, fake: FakeCuda) -> None:
        self.fake, self.current = fake, fake.cuStreamCreate(1)[1]
        self.handles: list[vpps.Handle] = []

    def stream(self, device: Any) -> int:
        return self.current

    def over(self, driver: Any, memory: Any) -> Any:
        return torch.from_numpy(np.asarray(driver.array(memory, 0, (memory.nbytes // 4,))))

    def device(self, target: str) -> Any:
        return torch.device("cpu") if target == "cuda" else None

    def mark(self, device: Any) -> Any:
        with self.context():
            event = self.fake.cuEventCreate(0)[1]
            self.fake.cuEventRecord(event, self.current)
        return event

    def wait_for(self, mark: Any, device: Any) -> None:
        with self.context():
            self.fake.cuStreamWaitEvent(self.current, mark, 0)

    @contextmanager
    def context(self) -> Iterator[None]:
        self.fake.cuCtxPushCurrent("context")
        yield
        self.fake.cuCtxPopCurrent()

    def copied(self, array: Any, device: Any) -> Any:
        return torch.from_numpy(array)

    def run(self, stream: int, operators: Callable[[], object]) -> None:
        self.fake.calls.append(("operators", stream))
        self.fake._put(stream, lambda: torch.no_grad()(operators)() is not self)

    def stack(self, config: Config) -> DeviceRecurrentStack:
        """Return a new stack, which the fixture closes."""
        stack = DeviceRecurrentStack(config)
        self.handles.append(stack.handle)
        return stack

    def module(self, model: vpps.Model, *optimizer: vpps.Optimizer, **options: Any) -> Any:
        """Return a new Module of target cuda, whose handle the fixture closes."""
        net = vpps.torch.Module(model, *optimizer, target="cuda", **options)
        self.handles.append(net.handle)
        return net

    def finish(self) -> None:
        """Let PyTorch's stream run to its end."""
        assert self.fake.cuStreamSynchronize(self.current) == (fake_cuda.OK,)


def posing_as_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Posing]:
    """Implement the fixture `posing`."""
    fake = fake_cuda.install_with_kernels(monkeypatch)
    posing = Posing(fake)
    alive, copy = [], copies.Copies._copy  # PyTorch's allocator for GPUs does not reuse memory before its stream

    def kept(copies: Any, part: Any, *others: Any, **options: Any) -> None:
        alive.append(part.tensor)
        copy(copies, part, *others, **options)

    monkeypatch.setattr(copies.Copies, "_copy", kept)
    monkeypatch.setattr(copies, "tensors", posing)
    yield posing
    for handle in posing.handles:  # queued copies of a test that failed would read memory that is gone
        fake.streams[:] = map(type(fake.streams[0]), [()] * len(fake.streams))
        fake.events |= dict.fromkeys(fake.events, 0)
        handle.close()
    assert fake.depth == 0
    assert fake.findings == []
