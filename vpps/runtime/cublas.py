"""Products of matrices between two launches, on a GPU: cuBLAS, called through CuPy."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from vpps.errors import HandleError
from vpps.ops.element import FLOAT32
from vpps.runtime.driver import Call, Driver
from vpps.script.products import Product


class Cublas:
    """A handle of cuBLAS for the products of one stream. Made and used inside `with driver:`.

    Args:
        stream: of the launches.

    Attributes:
        error: what a call raises that cuBLAS refuses.
        current: a context inside which CuPy's calls go to the stream.

    Raises:
        HandleError: cuBLAS cannot be used.
    """

    def __init__(self, driver: Driver, stream: Any) -> None:
        import cupy

        try:
            self._api = cupy.cuda.cublas
            self._handle = self._api.create()  # not CuPy's own, whose precision a program may have changed
        except (ImportError, RuntimeError) as error:  # the library is missing, or has no memory left
            from cuda.bindings import __version__ as installed

            major = installed.partition(".")[0]
            raise HandleError(
                "the gradients of large matrices are made by cuBLAS, and CuPy cannot use it here "
                f"({type(error).__name__}: {error}): pip install 'cupy-cuda{major}x[ctk]' brings it; or let the "
                "kernel make all gradients, with Handle(model, onchip=ChipOptions(gradients='passes'))"
            ) from error
        weakref.finalize(self, _destroy, self._api, self._handle, driver, os.getpid()).atexit = False
        # The default computes in no lower precision than the operands': TF32 would have to be asked for.
        self._api.setMathMode(self._handle, self._api.CUBLAS_DEFAULT_MATH)
        self._driver = driver
        self._stream = stream
        self.current: AbstractContextManager[Any] = cupy.cuda.ExternalStream(int(stream))
        self.error: type[Exception] = self._api.CUBLASError
        self._factors = np.array([0, 1], FLOAT32.dtype)  # read when a call is made

    def multiplying(self, pool: int, products: Sequence[Product]) -> list[Call]:
        """Calls for `Driver.run`, to be made inside `current`; they return at once.

        Args:
            pool: address of its first float.
        """
        zero, one = (self._factors.ctypes.data + FLOAT32.bytes * k for k in (0, 1))
        normal, transposed = self._api.CUBLAS_OP_N, self._api.CUBLAS_OP_T
        calls: list[Call] = []
        for p in products:
            dy, x, gradient = (pool + FLOAT32.bytes * address for address in (p.dy.address, p.x.address, p.gradient))
            if p.n:
                # cuBLAS counts columns first: to it, our rows are columns, and G = dY^T X is G^T = X^T dY.
                sizes, before = (p.columns, p.rows, p.n), one if p.accumulate else zero
                factors = (x, p.x.stride, dy, p.dy.stride)
                result = (before, gradient, p.columns)
                calls.append(partial(self._api.sgemm, self._handle, normal, transposed, *sizes, one, *factors, *result))
            elif not p.accumulate:
                calls.append(self._driver.filling(gradient, 0, p.rows * p.columns, self._stream))
        return calls


def _destroy(api: Any, handle: int, driver: Driver, pid: int) -> None:
    """Give the handle back. In a forked child there is none, and of a GPU that is lost nothing is left to free."""
    if os.getpid() == pid and not driver.lost:
        with driver:
            api.destroy(handle)
