"""What compiled kernels need: registers, spills, memory, code; which weights each of them holds on the chip."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vpps.engine.ahead import Specialized
from vpps.kernel.render import tiles_of
from vpps.targets import TARGETS
from vpps.text import Report, in_bytes, table

_REGISTERS = ("registers", "live", "cached", "spilled", "stack")


@dataclass(frozen=True, slots=True)
class MatrixReport:
    """Where a matrix, or its transpose, is during a launch.

    Attributes:
        name: of the parameter, with ^T for the transpose.
        tier: "registers", "shared", "atomic" or "L2".
        slots: shape of its slots, "2 x (4,8,1)": how many, rows, columns per lane, warps, and its precision unless that
            is float32; "" without any.
        gradient: where its gradient is gathered, "" for a transpose.
        reason: why.
    """

    name: str
    tier: str
    slots: str
    gradient: str
    reason: str


@dataclass(frozen=True, slots=True)
class KernelReport(Report):
    """A compiled kernel.

    Attributes:
        target: its name.
        arch: "sm_90"; of cpu the instruction set; "" of simt.
        vps: virtual processors.
        instructions, tails: that it knows.
        binary: path of it.
        binary_bytes: size of that file.
        tile: of products, on cpu: vectors by rows a pass.
        registers: per thread; this and the following of cuda only, else None.
        live: registers that hold something between two instructions; None without nvdisasm.
        cached: registers that hold weights or gradients.
        spilled: bytes of instructions that move registers to and from memory.
        stack: bytes per thread.
        shared: bytes of shared memory per block.
        code: bytes of machine code.
        seconds: that the compiler took.
        stepped_down: larger arrangements of weights that did not fit into registers.
        matrices: what the chip holds, and what not.
    """

    target: str
    arch: str
    vps: int
    instructions: int
    tails: int
    binary: str
    binary_bytes: int
    tile: str = ""
    registers: int | None = None
    live: int | None = None
    cached: int | None = None
    spilled: int | None = None
    stack: int | None = None
    shared: int | None = None
    code: int | None = None
    seconds: float | None = None
    stepped_down: int = 0
    matrices: tuple[MatrixReport, ...] = ()

    @property
    def name(self) -> str:
        """For headings."""
        return self.arch if TARGETS[self.target].has_archs else f"{self.target} {self.arch}".rstrip()

    def text(self) -> str:
        """As a table of one kernel."""
        return KernelsReport((self,)).text()


@dataclass(frozen=True, slots=True)
class KernelsReport(Report):
    """Kernels side by side.

    Attributes:
        kernels: of one model, in the order asked for.
    """

    kernels: tuple[KernelReport, ...]

    def text(self) -> str:
        """A table of what they need, a row each; below one of the tiers of matrices, a column each."""
        columns: dict[str, list[object]] = {
            "kernel": [k.name for k in self.kernels],
            "VPs": [k.vps for k in self.kernels],
            **{name: [getattr(k, name) for k in self.kernels] for name in _REGISTERS},
            "shared": [_size(k.shared) for k in self.kernels],
            "code": [_size(k.code) for k in self.kernels],
            "binary": [_size(k.binary_bytes) for k in self.kernels],
            "instructions": [k.instructions for k in self.kernels],
            "tails": [k.tails for k in self.kernels],
            "compiled in": [None if k.seconds is None else f"{k.seconds:.1f} s" for k in self.kernels],
            "smaller": [k.stepped_down for k in self.kernels],
        }
        shown = {head: cells for head, cells in columns.items() if any(cell is not None for cell in cells)}
        lines = table(list(shown), zip(*shown.values(), strict=True))
        tiles = {f"{k.name}: {k.tile}": None for k in self.kernels if k.tile}
        lines += ["", *tiles] if tiles else []
        names = list(dict.fromkeys(m.name for k in self.kernels for m in k.matrices))
        if names:
            held = [{m.name: m for m in k.matrices} for k in self.kernels]
            lines += ["", *table(("matrix", *(k.name for k in self.kernels)), [
                (name, *(_held(of[name]) if name in of else None for of in held)) for name in names
            ], range(1 + len(held)))]  # fmt: skip
        return "\n".join([*lines, ""])


def _size(n: int | None) -> str | None:
    return None if n is None else in_bytes(n)


def _held(m: MatrixReport) -> str:
    gradient = f", gradient {m.gradient}" if m.gradient and m.gradient != "none" else ""
    return f"{m.tier}{f' {m.slots}' if m.slots else ''}{gradient}"


def kernel_report(kernel: Specialized, tile_name: str | None = None) -> KernelReport:
    """What a kernel needs. Raises CompileError if nvdisasm is there but cannot read it.

    Args:
        tile_name: of the tile of products, on cpu; None for the usual one.
    """
    chip, found = kernel.spec.chip, kernel.resources
    needs: dict[str, Any] = {}
    if not TARGETS[kernel.target].is_gpu:
        tile = next(t for t in tiles_of(kernel.arch) if tile_name in (None, t.name))  # the usual one is the first
        needs["tile"] = f"products of {tile.vectors} vectors by {tile.panel} rows a pass"
    elif found is None:
        needs["shared"] = chip.shared_bytes
    else:
        needs = {
            "registers": found.registers,
            "live": _live(kernel),
            "cached": found.cached_registers,
            "spilled": found.spill_stores + found.spill_loads,
            "stack": found.stack,
            "shared": chip.shared_bytes + found.shared_bytes,
            "code": found.code_bytes,
            "seconds": found.compile_seconds,
        }
    return KernelReport(
        kernel.target,
        kernel.arch,
        kernel.vps * chip.groups,
        len(kernel.spec.instructions),
        len(kernel.spec.tails),
        str(kernel.binary),
        kernel.binary.stat().st_size,
        stepped_down=kernel.stepped_down,
        matrices=tuple(_matrices(kernel)),
        **needs,
    )


def _live(kernel: Specialized) -> int | None:
    from vpps.kernel.nvrtc import compile_cubin
    from vpps.kernel.sass import with_live_registers

    cubin = compile_cubin(kernel.source, kernel.arch, kernel.spec.chip.registers)  # the cache has it
    return with_live_registers(cubin).resources.live_registers


def _matrices(kernel: Specialized) -> Iterator[MatrixReport]:
    onchip = kernel.arrangement.onchip
    for held in () if onchip is None else onchip.held:
        yield MatrixReport(held.name, held.tier, held.in_slots, held.gradient, held.reason)
