"""Libraries for the simt target: number of compilations, flags, and errors."""

from __future__ import annotations

import ctypes
import shlex
import shutil
from pathlib import Path

import pytest

from vpps.errors import CompileError
from vpps.kernel import ziglang
from vpps.kernel.render import template_dir
from vpps.kernel.simt_compiler import EMULATOR, EMULATOR_HEADERS, WORDS, build_emulator, build_simt

pytestmark = pytest.mark.simt

GXX = shutil.which("g++") or shutil.which("clang++") or "no compiler"
KERNEL = """
struct Launch { float* pool; const Word* script; unsigned* counters; unsigned* cleared; unsigned* report;
                unsigned long long patience; };
extern "C" __global__ void __launch_bounds__(256, 1) vpps_kernel(const Launch launch)
{
    #pragma unroll
    for (int k = 0; k < 2; k++) launch.pool[threadIdx.x + k] = __fmaf_rn(2.f, 3.f, 4.f) + make_float4(0, 1, 2, k).w;
    __syncthreads();
    %s
}
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and the log to which a compiler writes its arguments, a line per call."""
    if GXX == "no compiler":
        pytest.skip("puts a script before g++ or clang++, and there is none")
    monkeypatch.setenv("VPPS_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "compiler of mine"
    log = tmp_path / "log"
    path.write_text(f'#!/bin/sh\necho "$@" >> {shlex.quote(str(log))}\nexec {shlex.quote(GXX)} "$@"\n')
    path.chmod(0o755)
    monkeypatch.setenv("CXX", shlex.quote(str(path)))
    return log


def compilations(log: Path) -> list[str]:
    """Compilations so far: "plain", or "races" if accesses are reported."""
    calls = [line.split() for line in log.read_text().splitlines()]
    return ["races" if "-fsanitize=thread" in call else "plain" for call in calls if "-c" in call]


def test_emulator_and_source_are_compiled_once(log: Path) -> None:
    first = build_simt(KERNEL % "")
    assert compilations(log) == ["plain", "plain"]  # the emulator, the kernel
    assert build_simt(KERNEL % "") == first
    assert compilations(log) == ["plain", "plain"]
    second = build_simt(KERNEL % "", races=True)
    assert second != first
    assert compilations(log) == ["plain", "plain", "races"]
    assert build_simt(KERNEL % "at(3);") not in (first, second)
    assert len(compilations(log)) == 4
    for line in log.read_text().splitlines():  # results do not depend on the compiler
        if "-c" in line.split():
            assert "-ffp-contract=off" in line.split()
            assert "-ffast-math" not in line


def test_neither_emulator_nor_words_draw_warnings(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"{shlex.quote(GXX)} -Werror")
    body = """
        const bool vote = __any_sync(~0u, threadIdx.x < blockDim.x);
        const float sum = __shfl_xor_sync(~0u, 1.f, 16) + __shfl_sync(~0u, vote ? 1.f : 2.f, 1);
        __syncwarp();
        __syncwarp(~0u);
        if (blockIdx.x < gridDim.x) add_float(launch.pool, sum + __uint_as_float(__float_as_uint(shared_memory()[0])));
    """
    assert build_emulator().is_file()
    assert all(build_simt(KERNEL % body, races).is_file() for races in (False, True))


def test_every_file_of_the_emulator_is_part_of_its_key() -> None:
    names = {path.name for path in (template_dir() / "simt").iterdir()}
    assert names == {EMULATOR, WORDS, *EMULATOR_HEADERS}


@pytest.mark.parametrize(
    "body, words",
    [
        ("__nanosleep(20);", "__nanosleep"),
        ("__atomic_fetch_add(launch.counters, 1u, __ATOMIC_RELAXED);", "tsan_atomic32"),
        ("__shared__ float x[32]; x[0] = 1;", "__shared__"),  # all blocks would share it
    ],
)
def test_words_that_do_not_exist_are_rejected(body: str, words: str) -> None:
    with pytest.raises(CompileError, match=words):
        build_simt(KERNEL % body, races=True)


def test_zig_compiles_the_emulator_without_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zig = ziglang.installed()
    if zig is None:
        pytest.skip("the ziglang package is not installed (pip install 'vpps[zig]')")
    monkeypatch.setenv("VPPS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", shlex.join(zig))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    library = ctypes.CDLL(str(build_simt(KERNEL % "", races=True)))
    assert hasattr(library, "vpps_simt_run")
    assert not (tmp_path / "home").exists()
