"""The pool in the memory of a GPU: reads and writes are copies, in order with the launches of a stream."""

from __future__ import annotations

from typing import Any

import numpy as np

from vpps.interop import is_on_gpu
from vpps.ops.element import FLOAT32
from vpps.runtime.driver import DeviceMemory, Driver


class DevicePool:
    """Floats that kernels work on. `pool[a:b]` copies them to the host; `pool[a:b] = array` copies a NumPy or CuPy
    array to the pool.

    Reads and writes wait for the stream's work.

    Args:
        stream: stream of the launches.
        memory: GPU memory, which begins with the floats.
        floats: number of floats.
    """

    def __init__(self, driver: Driver, stream: Any, memory: DeviceMemory, floats: int) -> None:
        self._driver = driver
        self._stream = stream
        self.memory = memory
        self._floats = floats

    @property
    def address(self) -> int:
        """Address of the first float on the GPU."""
        return self.memory.address

    @property
    def nbytes(self) -> int:
        """Size of the pool in bytes."""
        return FLOAT32.bytes * self._floats

    def __len__(self) -> int:
        return self._floats

    def _span(self, place: Any) -> tuple[int, int]:
        """Return [start, stop) of an int or a slice."""
        if isinstance(place, slice):
            start, stop, step = place.indices(self._floats)
            if step != 1:
                raise IndexError(f"the pool is read and written in one piece, not in steps of {step}")
            return start, max(start, stop)
        index = int(place) + self._floats * (place < 0)
        if not 0 <= index < self._floats:
            raise IndexError(f"{place} is not in a pool of {self._floats} floats")
        return index, index + 1

    def __getitem__(self, place: Any) -> Any:
        start, stop = self._span(place)
        found = np.empty(stop - start, FLOAT32.dtype)
        if len(found):
            source = self.address + FLOAT32.bytes * start
            with self._driver as driver:
                copying = driver.copying_out(found.ctypes.data, source, found.nbytes, self._stream)
                driver.finish(self._stream, copying)
        return found if isinstance(place, slice) else found[0]

    def __setitem__(self, place: Any, values: Any) -> None:
        start, stop = self._span(place)
        if start == stop:
            return
        target = self.address + FLOAT32.bytes * start
        with self._driver as driver:
            if np.ndim(values) == 0:
                word = int(np.float32(values).view(np.uint32))
                driver.run(driver.filling(target, word, stop - start, self._stream))
                return
            if is_on_gpu(values):  # a flat CuPy array
                driver.finish(self._stream, driver.copying(target, values.data.ptr, values.nbytes, self._stream))
                return
            source = np.ascontiguousarray(values, FLOAT32.dtype).reshape(-1)
            if len(source) != stop - start:
                raise ValueError(f"{len(source)} floats do not fill the {stop - start} from {start} to {stop}")
            copying = driver.copying_in(target, source.ctypes.data, source.nbytes, self._stream)
            driver.finish(self._stream, copying)  # after this `source` may be freed

    def view(self, address: int, shape: tuple[int, ...]) -> Any:
        """Return a CuPy array over the floats from `address` on, without a copy.

        It has `__dlpack__` and `__cuda_array_interface__`, so that other libraries can share the memory. It shows the
        results of the last launch until the next launch begins. Once the pool grows, the array is not part of it.

        Raises:
            IndexError: the array would exceed the pool.
        """
        floats = int(np.prod(shape, dtype=np.int64))
        if not 0 <= address <= address + floats <= self._floats:
            raise IndexError(f"{floats} floats from {address} on are not in a pool of {self._floats}")
        with self._driver as driver:
            driver.finish(self._stream)
            return driver.array(self.memory, FLOAT32.bytes * address, shape)
