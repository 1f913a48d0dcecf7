"""Shared parts of the PyTorch peers on a GPU: one upload of indices per step, losses read steps later, precision,
capture into CUDA graphs, and a step's GPU time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_STAGES = 4  # number of pinned buffers: the host can be steps ahead of the device
_CYCLES = 2e9  # GPU cycles per second, approximately
_LONGEST_SLEEP = 0.05  # seconds


def configure(device: str, tf32: bool) -> None:
    """Allow or forbid tensor cores with ten bits of mantissa for float32 products; PyTorch's default is off for
    products and on for cuDNN. CPU runs only check programs and use one thread: two are slow on a busy machine."""
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    if device == "cpu":
        torch.set_num_threads(1)


def describe(device: str) -> dict[str, object]:
    """Return the facts that a device's figures depend on, for a bench's lines."""
    if device == "cpu":
        return {"name": "cpu", "threads": torch.get_num_threads()}
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name, "arch": f"sm_{properties.major}{properties.minor}",
        "sms": properties.multi_processor_count, "torch_cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }  # fmt: skip


class Uploader:
    """Copies a step's integers to the device in one go, without waiting: from pinned memory, with buffers in turn."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stages: dict[int, tuple[Tensor, torch.cuda.Event]] = {}
        self._next = 0

    def __call__(self, parts: Sequence[NDArray[np.int64]], to: Tensor | None = None) -> Tensor:
        """Return the concatenated parts on the device: in a new tensor, or in `to`, which may be longer."""
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
            copied.synchronize()  # a copy from some steps ago: it hardly ever waits
            if len(buffer) >= length:
                return buffer, copied
        buffer = torch.empty(2 * length, dtype=torch.int64, pin_memory=True)
        self._stages[self._next] = buffer, torch.cuda.Event()
        return self._stages[self._next]


class Losses:
    """Copies the losses of steps to the host. Each is read when its place is reused, steps later: the host waits only
    if the device is that many steps behind.

    Attributes:
        read: the last loss read this way.
    """

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._places = torch.full((_STAGES,), math.nan, pin_memory=on_gpu)
        self._arrived = [torch.cuda.Event() for _ in range(_STAGES)] if on_gpu else []
        self._latest = 0
        self.read = math.nan

    def put(self, loss: Tensor) -> None:
        """Store the latest step's loss."""
        self._latest = (self._latest + 1) % _STAGES
        self.read = self.latest()
        self._places[self._latest].copy_(loss, non_blocking=True)
        if self._arrived:
            self._arrived[self._latest].record()

    def latest(self) -> float:
        """Wait for the latest loss and return it."""
        if self._arrived:
            self._arrived[self._latest].synchronize()
        return self._places[self._latest].item()


def kernel_seconds(step: Callable[[], None], host: float) -> float:
    """Return a step's GPU seconds, from the first to the last item that it puts into the stream. The GPU sleeps until
    all of them are there, so it never waits for the host, unless the host takes longer than _LONGEST_SLEEP or there are
    more launches than the driver's queue can hold (about a thousand).

    Args:
        host: the host's seconds for a step.
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

    It runs a few times before the capture (workspaces of cuBLAS, compilation); these runs must change nothing.
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
        """Run the function; the next call overwrites the result."""
        if self._graph is None:
            return self._function()
        self._graph.replay()
        return self._result
