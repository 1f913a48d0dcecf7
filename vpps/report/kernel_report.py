"""Report on compiled kernels: registers, spills, memory, code size, and weights held on the chip."""

from __future__ import annotations

from collections.abc import Sequence

from vpps.engine.ahead import Specialized
from vpps.kernel.render import TILES
from vpps.placement.onchip.holding import HeldMatrix
from vpps.targets import TARGETS
from vpps.text import Text, in_bytes, table


def kernels_text(kernels: Sequence[Specialized]) -> Text:
    """Return two tables for one model's kernels: a row of resources and a column of matrix tiers per kernel."""
    rows = [_row(kernel) for kernel in kernels]
    heads = [head for head in rows[0] if any(row[head] is not None for row in rows)]
    lines = table(heads, [[row[head] for head in heads] for row in rows])
    for kernel in kernels:
        if not TARGETS[kernel.target].is_gpu:
            tile = TILES[kernel.arch]
            shape = f"products of {tile.vectors} vectors by {tile.panel} rows a pass"
            lines += ["", f"{_name(kernel)}: {shape}"]
    held = [{m.name: _held(m) for m in onchip.held} if (onchip := k.arrangement.onchip) else {} for k in kernels]
    if names := list(dict.fromkeys(name for of in held for name in of)):
        cells = [(name, *(of.get(name) for of in held)) for name in names]
        lines += ["", *table(("matrix", *map(_name, kernels)), cells, range(1 + len(held)))]
    return Text("\n".join([*lines, ""]))


def _row(kernel: Specialized) -> dict[str, object]:
    chip, found = kernel.spec.chip, kernel.resources
    shared = chip.shared_bytes if TARGETS[kernel.target].is_gpu else None
    needs: dict[str, object] = dict.fromkeys(("registers", "cached", "spilled", "stack"))
    if found is not None:
        shared = chip.shared_bytes + found.shared_bytes
        needs = {
            "registers": found.registers,
            "cached": found.cached_registers,
            "spilled": found.spill_stores + found.spill_loads,
            "stack": found.stack,
        }
    return {
        "kernel": _name(kernel),
        "VPs": kernel.vps * chip.groups,
        **needs,
        "shared": None if shared is None else in_bytes(shared),
        "code": None if found is None else in_bytes(found.code_bytes),
        "binary": in_bytes(kernel.binary.stat().st_size),
        "instructions": len(kernel.spec.instructions),
        "tails": len(kernel.spec.tails),
        "compiled in": None if found is None else f"{found.compile_seconds:.1f} s",
        "smaller": kernel.stepped_down,
    }


def _name(kernel: Specialized) -> str:
    return kernel.arch if TARGETS[kernel.target].has_archs else f"{kernel.target} {kernel.arch}".rstrip()


def _held(m: HeldMatrix) -> str:
    return f"{m.tier} {m.held_as}".rstrip()
