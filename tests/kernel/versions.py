"""Compiles kernels with the NVRTC in PYTHONPATH, and prints their resources: `python -m tests.kernel.versions sm_90`.
Each NVRTC needs a separate process, because a process loads only one."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import Any

import vpps
from tests.kernel.programs import tree_lstm
from tests.kernel.sass import code_of, live_registers
from tests.kernels import EVERYTHING
from tests.nvrtc import COMPILE_ALL
from vpps.kernel import libnvrtc
from vpps.kernel.nvrtc import KERNEL, compile_cubin, supported_archs
from vpps.kernel.render import render_cuda
from vpps.kernel.spec import KernelSpec
from vpps.placement.onchip.device import TENSOR_CORES, known_device

PARTS = 6
PRECISIONS = ("bf16", "tf32", "3xtf32") if COMPILE_ALL else ("bf16",)


def specs(arch: str) -> Iterator[tuple[str, KernelSpec]]:
    """The smallest kernel; Tree-LSTMs with tails: in each precision, in groups, in the published scheme, with chunks of
    matrices; every instruction with weights in memory (in several kernels: a single kernel takes 13 s more)."""
    yield "smallest", KernelSpec(frozenset())
    for precision in ("float32", *PRECISIONS) if int(arch.removeprefix("sm_")) >= TENSOR_CORES else ("float32",):
        found = vpps.specialize(
            *tree_lstm(256), arch=arch, sms=132, groups=1, passes=vpps.Passes(), precision=precision
        )
        yield f"Tree-LSTM in {precision}", found.spec.of(132)
    gpu = dataclasses.replace(known_device("T4"), sm=int(arch.removeprefix("sm_")))
    for name, options in {
        "two groups": {"arch": arch, "sms": 132, "groups": 2},
        "four groups": {"arch": arch, "sms": 132, "groups": 4},
        "published": {"arch": arch, "sms": 132, "ownership": "round-robin"},
        "in chunks": {"device": gpu},
    }.items():
        found = vpps.specialize(*tree_lstm(256), passes=vpps.Passes(), **options)
        yield name, found.spec.of(found.vps * found.spec.chip.groups)
    for k in range(PARTS):
        yield f"part {k} of everything", KernelSpec(frozenset(sorted(EVERYTHING)[k::PARTS]))
    if COMPILE_ALL:  # tests/gpu runs that kernel
        yield "everything", KernelSpec(EVERYTHING)


def main(archs: list[str]) -> None:
    """Print a line of JSON: the library, and the resources of every kernel for each architecture that it supports."""
    found: dict[str, dict[str, Any]] = {}
    for arch in archs:
        if arch in supported_archs():
            for name, spec in specs(arch):
                cubin = compile_cubin(render_cuda(spec), arch, spec.chip.registers)
                traced = arch.startswith("sm_100") or not libnvrtc.library().version.startswith("12.")
                found[f"{name} on {arch}"] = said = {"resources": dataclasses.asdict(cubin.resources)}
                if spec.chip.registers and traced:  # CUDA 13's disassembler cannot trace older architectures
                    said["live"] = live_registers(code_of(cubin), KERNEL)
    print(json.dumps({"path": libnvrtc.library().path, "kernels": found}))


if __name__ == "__main__":
    main(sys.argv[1:])
