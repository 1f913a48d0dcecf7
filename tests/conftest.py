"""Shared by all tests: scripts are verified before they run, and real data is found by path."""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("VPPS_VERIFY", "1")  # every script that a test launches is checked first
os.environ.setdefault("VPPS_LOG", "notset")  # no notices: they depend on which kernels are already compiled
os.environ.setdefault("VPPS_TUNING", "0")  # tests do not depend on measurements of this machine
# Tests of generic instructions need no compiled tails for their hundreds of cells. Other tests use `fused` or are in a
# folder of `FUSED`.
os.environ.setdefault("VPPS_PASSES", "-fusion")
# NumPy reads it at import: otherwise the float64 reference's threads would compete with each other and with ours.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A shell's background jobs ignore SIGINT, and processes that tests start and interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

FUSED = ("fuzz", "ops", "record")
QUICK = ("compiler", "engine", "tuning", "test_gradient_tiles", "test_slots", "test_windows")

DATA = Path(os.environ.get("VPPS_DATA", Path(__file__).parents[2] / "shared" / "data"))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark all tests of vpps.torch: they need PyTorch."""
    if item.path.is_relative_to(Path(__file__).parent / "torch"):
        item.add_marker(pytest.mark.frameworks("torch"))


def pytest_collection_finish() -> None:
    """Freeze the nine thousand collected tests, which exist until the end, so that garbage collection skips them."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests whose framework is missing."""
    for mark in item.iter_markers("frameworks"):
        for name in mark.args:
            pytest.importorskip(name, reason=f"{name} is not installed: scripts/test --torch installs and tests it")


@pytest.fixture(autouse=True, scope="session")
def no_script_is_verified_twice() -> Iterator[None]:
    """Skip scripts that were already verified: for all multiprocessors of a GPU, verifying takes seconds."""
    from vpps.script import verify as verifier

    verify, verified = verifier.verify, set[bytes]()

    def once(script: Any, layout: Any, origin: Callable[[int], str], *launches: Any) -> None:
        key = hashlib.sha256(pickle.dumps((script, layout, launches))).digest()
        if key not in verified:
            verify(script, layout, origin, *launches)
            verified.add(key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verifier, "verify", once)
        yield


@pytest.fixture(autouse=True)
def quick_compilation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile emulated kernels without optimisation in tests that launch their own kernels a few times. Others, as in
    tests/zoo, use the same kernels as users."""
    if request.path.parts[len(Path(__file__).parts) - 1] in QUICK or request.path.stem in QUICK:
        from vpps.kernel import simt_compiler

        flags = ["-O0" if flag == "-O1" else flag for flag in simt_compiler.KERNEL_FLAGS]
        monkeypatch.setattr(simt_compiler, "KERNEL_FLAGS", tuple(flags))


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fuse cells, as for users; separate tail libraries are compiled without optimisation."""
    from tests.kernels import compile_tails_quickly

    monkeypatch.delenv("VPPS_PASSES", raising=False)
    compile_tails_quickly(monkeypatch)


@pytest.fixture(autouse=True)
def fused_folders(request: pytest.FixtureRequest) -> None:
    """Fuse cells in all tests in the folders listed in `FUSED`."""
    if request.path.parts[len(Path(__file__).parts) - 1] in FUSED:
        request.getfixturevalue("fused")


@pytest.fixture
def roomy_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build emulated kernels with every end of a launch from the start, so that none is recompiled for it. Without
    weights on the chip, this is the kernel of tests/simt."""
    from tests.kernels import know_everything_in_memory, know_the_end_of_launches, widen
    from vpps.runtime.simt import SimtMachine

    widen(monkeypatch, SimtMachine, lambda spec: know_the_end_of_launches(know_everything_in_memory(spec)))


@pytest.fixture
def use_recorder(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that switches between the recorders "python" and "compiled" until the test ends."""
    from tests import recorders

    return partial(recorders.use, patch=monkeypatch)


@pytest.fixture
def real_data() -> Callable[[str], Path]:
    """Return a function that gives the path of a real data file; skips the test if the file is absent."""

    def find(name: str) -> Path:
        path = DATA / name
        if not path.exists():
            pytest.skip(f"{path} is absent: set VPPS_DATA to the folder of the data sets")
        return path

    return find
