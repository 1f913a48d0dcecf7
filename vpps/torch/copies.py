"""Copies between tensors on a GPU and the pool of a handle, from device to device.

Every copy is in PyTorch's current stream, and `CudaMachine.lent` orders these copies and the launches. So PyTorch's
allocator knows all uses of a tensor's memory, and the host waits for nothing.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vpps.model.model import Parameter
from vpps.ops.element import WORD_BYTES
from vpps.placement.distribution import Distribution
from vpps.runtime.device_pool import DevicePool
from vpps.runtime.driver import DeviceMemory, Driver
from vpps.targets import TARGETS


class DeviceTensors:
    """Calls of PyTorch that need a GPU."""

    def device(self, target: str) -> Any:
        """Return the GPU on which a target computes; None if it is the host, or if PyTorch cannot use the GPU."""
        row = TARGETS[target]
        on_gpu = row.is_gpu and not row.is_emulated and torch.cuda.is_available()
        return torch.device("cuda:0") if on_gpu else None

    def stream(self, device: Any) -> int:
        """Return PyTorch's current stream."""
        return int(torch.cuda.current_stream(device).cuda_stream)

    def over(self, driver: Driver, memory: DeviceMemory) -> Any:
        """Return a flat float32 tensor that shares the memory and keeps it alive."""
        return torch.from_dlpack(driver.array(memory, 0, (memory.nbytes // WORD_BYTES,)))

    def run(self, stream: int, operators: Callable[[], object]) -> None:
        """Run operators in PyTorch's current stream."""
        operators()

    def mark(self, device: Any) -> Any:
        """Return an event after the work in PyTorch's current stream so far."""
        return torch.cuda.current_stream(device).record_event()

    def wait_for(self, mark: Any, device: Any) -> None:
        """Let PyTorch's current stream wait for an event from `mark`."""
        torch.cuda.current_stream(device).wait_event(mark)

    def copied(self, array: NDArray[Any], device: Any) -> Any:
        """Copy an array to the GPU in PyTorch's current stream. The host does not wait: the source is page-locked."""
        return torch.from_numpy(array).pin_memory().to(device, non_blocking=True)


tensors = DeviceTensors()


def to_gpu(array: NDArray[Any], device: Any) -> Any:
    """Copy an array to the GPU."""
    return tensors.copied(array, device)


class Floats:
    """Memory of the GPU, and a tensor over it, which is made when it is first needed."""

    def __init__(self, memory: DeviceMemory) -> None:
        self.memory = memory
        self._flat: Any = None

    def flat(self, driver: Driver) -> Any:
        """Return a flat tensor that shares the memory."""
        if self._flat is None:
            with torch.inference_mode(False):  # else only inference could write to it
                self._flat = tensors.over(driver, self.memory)
        return self._flat


_pools: weakref.WeakKeyDictionary[DevicePool, Floats] = weakref.WeakKeyDictionary()


class FloatPlace(NamedTuple):
    """Floats of the pool or of a script.

    Attributes:
        start: the first float, if they are contiguous.
        index: tensor with the number of each float; None if they are contiguous.
    """

    start: int
    index: Any = None

    @classmethod
    def of(cls, key: Any, device: Any) -> FloatPlace:
        """Return the place of a key from `Span.key`."""
        return cls(key.start) if isinstance(key, slice) else cls(-1, to_gpu(key, device))


class Part(NamedTuple):
    """A tensor (n, ...), or its rows with the numbers in the tensor `rows`."""

    tensor: Any
    rows: Any = None


class Copies:
    """Copies in PyTorch's stream; made by `copying`. A method without `floats` copies from or to the pool."""

    def __init__(self, machine: Any, driver: Driver, stream: int) -> None:
        self._driver, self._stream = driver, stream
        known = _pools.get(machine.pool)
        if known is None:
            known = _pools[machine.pool] = Floats(machine.pool.memory)
        self._pool = known

    def write(self, place: FloatPlace, part: Part, floats: Floats | None = None) -> None:
        """Copy from a tensor to a place."""
        self._copy(part, place, floats or self._pool, is_write=True)

    def read(self, place: FloatPlace, part: Part) -> None:
        """Copy from a place to a tensor."""
        self._copy(part, place, self._pool, is_write=False)

    def _copy(self, part: Part, place: FloatPlace, floats: Floats, is_write: bool) -> None:
        (tensor, rows), (start, index) = part, place
        shape = (len(tensor if rows is None else rows), *tensor.shape[1:])
        count = math.prod(shape)
        if not count:
            return
        if index is None and rows is None and tensor.is_contiguous():
            ends = floats.memory.address + WORD_BYTES * start, tensor.data_ptr()
            target, source = ends if is_write else ends[::-1]
            self._driver.run(self._driver.copying(target, source, WORD_BYTES * count, self._stream))
            return
        flat = floats.flat(self._driver)

        def write() -> None:
            found = tensor if rows is None else tensor.index_select(0, rows)
            if index is None:
                flat[start : start + count].view(shape).copy_(found)
            else:
                flat.index_copy_(0, index, found.reshape(-1))

        def read() -> None:
            found = (flat[start : start + count] if index is None else flat.index_select(0, index)).view(shape)
            if rows is None:
                tensor.copy_(found)
            else:
                tensor.index_copy_(0, rows, found)

        self.run(write if is_write else read)

    def clear(self, start: int, count: int) -> None:
        """Write zeros to the pool."""
        if count:
            address = self._pool.memory.address + WORD_BYTES * start
            self._driver.run(self._driver.filling(address, 0, count, self._stream))

    def run(self, operators: Callable[[], object]) -> None:
        """Run operators of PyTorch, in order with the copies."""
        tensors.run(self._stream, operators)

    def view(self, start: int, *shape: int) -> Any:
        """Return floats of the pool as a tensor, for operators."""
        return self._pool.flat(self._driver)[start : start + math.prod(shape)].view(shape)


@contextmanager
def copying(machine: Any, device: Any) -> Iterator[Copies]:
    """Order the copies that a block makes: after the launches so far, and before later ones."""
    stream = tensors.stream(device)
    with machine.lent(stream) as driver:
        yield Copies(machine, driver, stream)


def numbers_of(rows: Any, device: Any) -> Any:
    """Return the numbers of rows for `Part`, given a mask, or a slice of all."""
    return None if isinstance(rows, slice) else to_gpu(np.flatnonzero(rows), device)


def put_weights(copies: Copies, distribution: Distribution, p: Parameter, value: Any) -> None:
    """Copy weights to their place, and to that of their transpose. On a GPU, a panel is one row."""
    place, stack = distribution.places[p], distribution.stacks.of.get(p)
    copies.write(FloatPlace(place.weights), Part(value))
    if place.transposed:
        height, first = (p.shape[0], 0) if stack is None else (stack.shape[0], distribution.first_row(p))
        target = copies.view(place.transposed, p.shape[1], height)[:, first : first + p.shape[0]]
        copies.run(lambda: target.copy_(value.t()))
