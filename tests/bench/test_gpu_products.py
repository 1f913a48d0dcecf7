"""The micro programs of bench/gpu_products.py as machine code; test_gpu_dry_run.py runs them on the simulated GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.nvrtc import COMPILE_ALL, needs_nvrtc
from vpps.kernel.nvrtc import compile_cubin

pytestmark = [pytest.mark.nvrtc, needs_nvrtc]


def test_all_compile_without_spills_and_stack() -> None:
    from gpu_products import PARTS, Scale

    scale = Scale(smallest=not COMPILE_ALL, blocks=132 if COMPILE_ALL else 16, has_clusters=True)
    programs = [program for part in PARTS.values() for _, programs, _ in part(scale) for program in programs]
    assert {program.file for program in programs} == {
        "today.cu", "product.cu", "gradient.cu", "meeting.cu", "levels.cu",
    }  # fmt: skip
    for source in {program.source for program in programs}:
        needed = compile_cubin(source, "sm_90").resources
        assert (needed.spill_stores, needed.stack) == (0, 0), source[-300:]


@pytest.mark.parametrize("kind", ["float32", "bf16", "3xtf32"])
def test_machine_code_of_products_follows_the_reference(kind: str, tmp_path: Path) -> None:
    from gpu_cost.machine import BASE, Machine
    from gpu_cost.machine_code import code_of
    from gpu_products import HEAD, product

    rows, k, n = 10, 128, 5
    program = product(rows, k, n, kind=kind)
    rng, first, end = np.random.default_rng(1), 64 + rows * k, 64 + rows * k + n * k
    order = rng.permutation(n)
    script = np.zeros(64, np.uint32)
    script[:HEAD] = 0, n, 1, HEAD + n, end, 0, 0, 0
    script[HEAD : HEAD + n] = first + order * k
    pool = rng.uniform(-1, 1, end + n * rows + 4).astype(np.float32)
    memory = np.concatenate([script, np.zeros(64, np.uint32), pool.view(np.uint32)])  # in the middle: the report
    parameters = np.array([BASE + 4 * at for at in (128, 0, 64, 64, 64, 0, 64, 64)], np.uint64).view(np.uint32)
    source = program.source.replace('asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));', "t = 0;")
    machine = Machine(code_of(source, "sm_90", tmp_path, 255), memory, parameters, 0, program.shared)
    with np.errstate(all="ignore"):
        for _ in machine.run(set()):
            pass
    found = memory[128 + end :].view(np.float32)[: n * rows].reshape(n, rows)
    expected = pool[first:end].reshape(n, k)[order].astype(np.float64) @ pool[64:first].reshape(rows, k).T + pool[:rows]
    np.testing.assert_allclose(found, expected, atol=0.1 if kind == "bf16" else 1e-5)
