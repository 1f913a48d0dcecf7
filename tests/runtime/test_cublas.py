"""What follows the first launch of a script, with an imaginary GPU: products by cuBLAS, then a second launch."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.runtime import fake_cuda
from tests.runtime.claims import END, SPEC, barriers, emulated, script, stuck, work
from tests.runtime.fake_cuda import CUresult, FakeCuda
from vpps.errors import HandleError
from vpps.placement.distribution import LOSS_SLOTS, ONE
from vpps.runtime.cuda import CudaMachine
from vpps.runtime.driver import DriverError
from vpps.script.encode import encode, plain
from vpps.script.instructions import HEADER_WORDS
from vpps.script.products import Continuation, PoolRows, Product, multiply

pytestmark = pytest.mark.simt

VPS = 3
ROWS, COLUMNS, N = 4, 3, 5
DY, X, G = PoolRows(32, 6), PoolRows(80, 3), 112  # dY with gaps between its rows
FLOATS = 160
PRODUCT = Product("U", ROWS, COLUMNS, N, DY, X, G, accumulate=False)


class CUBLASError(RuntimeError):
    pass


class FakeCublas:
    """`cupy.cuda.cublas`, as BLAS defines it: matrices column by column.

    Attributes:
        refuses: whether products fail.
        handles: that are there, and the precision of each.
    """

    CUBLAS_OP_N, CUBLAS_OP_T = 0, 1
    CUBLAS_DEFAULT_MATH = 0
    CUBLASError = CUBLASError

    def __init__(self, fake: FakeCuda) -> None:
        self.fake = fake
        self.refuses = False
        self.handles: dict[int, int] = {}

    def create(self) -> int:
        assert self.fake.depth, "no context is current"
        number = max(self.handles, default=70) + 1
        self.handles[number] = -1
        return number

    def setMathMode(self, handle: int, mode: int) -> None:
        self.handles[handle] = mode

    def destroy(self, handle: int) -> None:
        del self.handles[handle]

    def sgemm(
        self, handle: int, ta: int, tb: int, m: int, n: int, k: int,
        alpha: int, a: int, lda: int, b: int, ldb: int, beta: int, c: int, ldc: int,
    ) -> None:  # fmt: skip
        """C = alpha op(A) op(B) + beta C; op(A) has m rows, op(B) n columns."""
        if self.refuses:
            raise CUBLASError("CUBLAS_STATUS_EXECUTION_FAILED")
        assert self.handles[handle] == self.CUBLAS_DEFAULT_MATH
        stream = self.fake.current
        assert stream is not None
        assert k > 0, "what cuBLAS does with no terms is nowhere said"
        assert lda >= (k if ta else m)
        assert ldb >= (n if tb else k)
        assert ldc >= m
        scale, before = (float(np.ctypeslib.as_array(_floats(x, 1))[0]) for x in (alpha, beta))

        def happen() -> bool:
            left, right = _matrix(a, lda, (k, m) if ta else (m, k)), _matrix(b, ldb, (n, k) if tb else (k, n))
            left, right = left.T if ta else left, right.T if tb else right
            result = _matrix(c, ldc, (m, n))
            product = scale * (left @ right)
            result[:] = product + before * result if before else product  # beta 0: C is not read
            return True

        self.fake._put(stream, happen)
        self.fake.calls.append(("product", stream))


def _floats(address: int, count: int) -> Any:
    return (ctypes.c_float * count).from_address(address)


def _matrix(address: int, leading: int, shape: tuple[int, int]) -> NDArray[np.float32]:
    """Element (i, j) of a matrix kept column by column is number i + j * leading."""
    rows, columns = shape
    flat = np.ctypeslib.as_array(_floats(address, leading * (columns - 1) + rows))
    return np.lib.stride_tricks.as_strided(flat, shape, (4, 4 * leading))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return fake_cuda.install(monkeypatch)


def install(fake: FakeCuda) -> FakeCublas:
    """Let the imaginary GPU have cuBLAS."""
    cuda = sys.modules["cupy"].cuda
    cuda.cublas = FakeCublas(fake)
    found: FakeCublas = cuda.cublas
    return found


@pytest.fixture
def cublas(fake: FakeCuda) -> FakeCublas:
    return install(fake)


@pytest.fixture
def machine(cublas: FakeCublas, fake: FakeCuda, tmp_path: Path) -> Iterator[CudaMachine]:
    made = CudaMachine(VPS, build=emulated(tmp_path), patience=100_000_000)
    made.specialise(SPEC)
    made.reserve(FLOATS, 0)
    made.pool[:] = np.random.default_rng(1).normal(size=FLOATS)
    made.pool[ONE] = 1
    yield made
    made.close()
    assert not cublas.handles
    assert fake.findings == []


def two_launches(first: int, second: int) -> tuple[NDArray[np.uint32], Continuation]:
    """A script whose first launch copies the float at `first` to loss slot 0, the second that at `second` to slot 1."""
    loss = [plain(encode("loss", 0, 0, source=a, slot=LOSS_SLOTS + k)) for k, a in enumerate((first, second))]
    parts = [np.concatenate([barriers(VPS, 2), words, END]) for words in loss]
    streams = script(*[np.concatenate([parts[0], parts[1]])] * VPS)
    lengths = len(parts[0]) + len(parts[1])
    start = HEADER_WORDS + VPS + len(parts[0])
    entries = len(streams)
    words = np.concatenate([streams, plain([start + vp * lengths for vp in range(VPS)])])
    words[3] = len(words)
    return words, Continuation((PRODUCT,), entries)


def expected(pool: NDArray[np.float32], *products: Product) -> NDArray[np.float32]:
    """The pool after products."""
    pool = pool.copy()
    for product in products:
        multiply(pool, product)
    return pool


def test_order_of_calls(machine: CudaMachine, cublas: FakeCublas, fake: FakeCuda) -> None:
    words, continuation = two_launches(ONE, G)
    for _ in range(2):  # each of the two places for scripts is made by its first
        machine.launch(words, continuation)
        machine.wait()
    fake.calls.clear()
    machine.launch(words, continuation)
    assert fake.names() == [
        "copy in", "record", "wait event", "launch", "product", "copy", "launch", "record",
    ]  # fmt: skip
    streams = {call[-1] for call in fake.calls if call[0] in ("launch", "product", "copy")}
    assert len(streams) == 1, "one stream keeps them in order"
    assert fake.current is None, "CuPy's calls go again to where they went before"
    assert machine.launches == 3
    assert machine.wait() is None


@pytest.mark.parametrize(
    "products",
    [
        (PRODUCT,),
        (PRODUCT, PRODUCT._replace(accumulate=True)),
        (PRODUCT._replace(n=0),),
        (PRODUCT._replace(n=0, accumulate=True),),
    ],
    ids=["one", "two", "of no rows", "of no rows, added"],
)
@pytest.mark.parametrize("second", [False, True], ids=["products alone", "and a second launch"])
def test_products_follow_the_first_launch(
    machine: CudaMachine, fake: FakeCuda, products: tuple[Product, ...], second: bool
) -> None:
    before = machine.pool[:]
    words, continuation = two_launches(ONE, G) if second else (work(VPS, ONE, LOSS_SLOTS), Continuation((), 0))
    machine.launch(words, continuation._replace(products=products))
    assert fake.names().count("launch") == 1 + second
    assert machine.wait() is None
    after = expected(before, *products)
    after[LOSS_SLOTS] = 1
    if second:  # it sees the products
        after[LOSS_SLOTS + 1] = after[G]
    assert np.allclose(machine.pool[:], after, rtol=1e-6)
    assert after[G : G + ROWS * COLUMNS].any() == (products[0].n > 0 or products[0].accumulate)


def test_counters_are_clean_however_launches_follow_each_other(machine: CudaMachine) -> None:
    words, continuation = two_launches(ONE, G)
    for k in range(40):
        machine.pool[LOSS_SLOTS] = 0
        if k % 3 and k % 7:
            machine.launch(words, continuation)
        else:
            machine.launch(work(VPS, ONE, LOSS_SLOTS))
        assert machine.wait() is None
        assert machine.pool[LOSS_SLOTS] == 1
        assert machine.launches == k + 1


@pytest.mark.parametrize("stops", [0, 1])
def test_a_launch_that_stops_names_its_position_and_the_machine_works_on(machine: CudaMachine, stops: int) -> None:
    words, continuation = two_launches(ONE, G)
    start = int(words[continuation.entries]) if stops else HEADER_WORDS + VPS
    bad = words.copy() if stops else stuck(VPS)
    if stops:
        bad[start + len(barriers(VPS, 1)) - 1] = 99  # the target of its first wait
    machine.launch(bad, continuation if stops else continuation._replace(entries=0))
    failure = machine.wait()
    assert failure is not None
    assert any(start <= position < start + len(barriers(VPS, 2)) for position in failure.positions)
    machine.launch(words, continuation)
    assert machine.wait() is None


def test_a_product_that_cublas_refuses_is_an_error_and_the_machine_works_on(
    machine: CudaMachine, cublas: FakeCublas
) -> None:
    words, continuation = two_launches(ONE, G)
    cublas.refuses = True
    for _ in range(2):
        with pytest.raises(DriverError, match=r"cuBLAS.*CUBLAS_STATUS_EXECUTION_FAILED"):
            machine.launch(words, continuation)
        assert machine.wait() is None, "the first launch has been begun, and ends"
    cublas.refuses = False
    assert machine.launches == 2
    for _ in range(2):
        machine.launch(words, continuation)
        assert machine.wait() is None


def test_what_is_refused_or_missing_leaves_nothing_behind(
    machine: CudaMachine, cublas: FakeCublas, fake: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create() -> int:
        raise ImportError("libcublas.so.13: cannot open shared object file")

    words, continuation = two_launches(ONE, G)
    with monkeypatch.context() as without:
        without.setattr(cublas, "create", create)
        with pytest.raises(HandleError, match=r"libcublas.*cupy-cuda13x\[ctk\].*gradients='passes'"):
            machine.launch(words, continuation)
    machine.launch(work(VPS, ONE, LOSS_SLOTS))
    assert machine.wait() is None
    fake.failing["launch"] = CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(DriverError):
        machine.launch(words, continuation)
    assert machine.launches == 1
    fake.failing.clear()
    for _ in range(3):
        machine.launch(words, continuation)
        assert machine.wait() is None
