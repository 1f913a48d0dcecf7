"""What the PyTorch peers on a GPU share: one upload of indices per step, losses that are read steps later, precision,
capture into CUDA graphs, the time that a GPU takes for a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_STAGES = 4  # pinned buffers, so that the host can be steps ahead of the device
_CYCLES = 2e9  # of a GPU in a second, about
_LONGEST_SLEEP = 0.05  # seconds


def configure(device: str, tf32: bool) -> None:
    """Whether float32 products may run on tensor cores with ten bits of mantissa; PyTorch's default is off for products
    and on for cuDNN. On a CPU, where programs are only checked: one thread, as two collapse on a busy machine."""
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    if device == "cpu":
        torch.set_num_threads(1)


def describe(device: str) -> dict[str, object]:
    """What figures of a device depend on, for the lines of a bench."""
    if device == "cpu":
        return {"name": "cpu", "threads": torch.get_num_threads()}
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name, "arch": f"sm_{properties.major}{properties.minor}",
        "sms": properties.multi_processor_count, "torch_cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }  # fmt: skip


class Uploader:
    """Copies the integers of a step to the device in one go, without waiting: from pinned memory, buffers in turn."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stages: dict[int, tuple[Tensor, torch.cuda.Event]] = {}
        self._next = 0

    def __call__(self, parts: Sequence[NDArray[np.int64]], to: Tensor | None = None) -> Tensor:
        """The parts one after the other on the device: a new tensor, or in `to`, which may be longer."""
        length = sum(map(len, parts))
        if self._device.type == "cpu":
            joined = torch.from_numpy(np.concatenate(parts))
            return joined if to is None else to[:length].copy_(joined)
        staged, copied = self._stage(length)
        np.concatenate(parts, out=staged.numpy()[:length])
        to = torch.empty(length, dtype=torch.int64, device=self._device) if to is None else to
        to[:length].copy_(staged[:length], non_blocking=True)
        copied.record()
        return to[:length]

    def _stage(self, length: int) -> tuple[Tensor, torch.cuda.Event]:
        self._next = (self._next + 1) % _STAGES
        if self._next in self._stages:
            buffer, copied = self._stages[self._next]
            copied.synchronize()  # of some steps ago: it hardly ever waits
            if len(buffer) >= length:
                return buffer, copied
        buffer = torch.empty(2 * length, dtype=torch.int64, pin_memory=True)
        self._stages[self._next] = buffer, torch.cuda.Event()
        return self._stages[self._next]


class Losses:
    """Losses of the steps, on their way to the host: each is read when its place is wanted again, steps later, so that
    the host waits only where the device is behind by that many.

    Attributes:
        read: the one that was read so.
    """

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._places = torch.full((_STAGES,), math.nan, pin_memory=on_gpu)
        self._arrived = [torch.cuda.Event() for _ in range(_STAGES)] if on_gpu else []
        self._latest = 0
        self.read = math.nan

    def put(self, loss: Tensor) -> None:
        """That of the latest step."""
        self._latest = (self._latest + 1) % _STAGES
        self.read = self.latest()
        self._places[self._latest].copy_(loss, non_blocking=True)
        if self._arrived:
            self._arrived[self._latest].record()

    def latest(self) -> float:
        """Wait for it."""
        if self._arrived:
            self._arrived[self._latest].synchronize()
        return self._places[self._latest].item()


def kernel_seconds(step: Callable[[], None], host: float) -> float:
    """Seconds of the GPU for a step, from the first to the last of what it puts into the stream. The GPU sleeps until
    all of that is there, and never waits for the host - unless the host takes longer than _LONGEST_SLEEP, or there are
    more launches than the driver's queue holds, about a thousand.

    Args:
        host: seconds that the host takes for it.
    """
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(int(_CYCLES * min(2 * host + 1e-4, _LONGEST_SLEEP)))
    begun.record()
    step()
    ended.record()
    ended.synchronize()
    return 1e-3 * begun.elapsed_time(ended)


class Captured:
    """A function without arguments as a CUDA graph; on a CPU, the function itself.

    It runs a few times before it is captured (workspaces of cuBLAS, compilation): that must change nothing.
    """

    def __init__(self, function: Callable[[], Tensor], device: torch.device, pool: object | None) -> None:
        self._function = function
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cpu":
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                function()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._result = function()

    def __call__(self) -> Tensor:
        """Run it; the result is overwritten by the next call."""
        if self._graph is None:
            return self._function()
        self._graph.replay()
        return self._result
