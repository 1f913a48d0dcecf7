"""What a user is told about a kernel: where the weights live during a launch and why, and what the kernel takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from vpps.kernel.chip import THREADS
from vpps.kernel.host_compiler import multiplies_pairs
from vpps.kernel.spec import KernelSpec
from vpps.model.model import Lookup, Parameter
from vpps.ops.element import WORD_BYTES
from vpps.ops.precision import EXACT
from vpps.placement.distribution import Distribution
from vpps.placement.onchip import OnChip
from vpps.placement.onchip.report import explain as explain_onchip
from vpps.runtime.machine import Machine
from vpps.targets import TARGETS
from vpps.text import WIDTH, columns, counted, note
from vpps.text import in_bytes as shown

if TYPE_CHECKING:
    from vpps.engine.ahead import Specialized

_PARAMETERS = ("parameter", "kind", "shape", "panels", "weights", "transpose", "gradient", "moments", "average")
_LEFT = 3  # columns of text; numbers follow
_NOT_YET = (
    "not yet: it will be for the first fb, forward or gradients, or ahead of them with Handle(..., example=(graph, "
    "loss))"
)


def explain(
    parameters: Distribution,
    onchip: OnChip | None,
    kernel: Machine | Specialized,
    stepped_down: int,
    driver: str = "",
    cells: Sequence[tuple[str, Sequence[tuple[str, str]]]] = (),
    said: Iterable[tuple[str, str]] = (),
) -> str:
    """Plain text of 110 columns.

    Args:
        parameters: where they are in memory.
        onchip: what the chip holds; None where there is no such choice.
        kernel: what runs on it. A machine may have none yet, or (cpu) one that serves all models.
        stepped_down: larger arrangements of weights that spilled.
        driver: what the GPU's driver says of itself; "" where the kernel does not run on a GPU.
        cells: what the cell compiler did to each: its name, then (pass, sentence).
        said: what is said of the latest calls: of what, and a sentence, left out where it is "".
    """
    if onchip is None:
        text = _explain_memory(parameters, kernel)
    else:
        moments = max((len(place.moments) for place in parameters.places.values()), default=0)
        compiled = _compiled(kernel, stepped_down, driver)
        text = explain_onchip(onchip, moments, [*compiled, *_launches(onchip, kernel.spec), *_memory(parameters)])
    said = [*_precisions(parameters), *said]
    text += "".join(note(f"{name:<15}", sentence) + "\n" for name, sentence in said if sentence)
    for name, lines in cells:
        text += f"\ncell {name}\n" + "".join(note(f"  {what:<23}", sentence) + "\n" for what, sentence in lines)
    return text


def _compiled(kernel: Machine | Specialized, stepped_down: int, driver: str) -> list[tuple[str, str]]:
    found = kernel.resources
    if kernel.spec is None:
        lines = [("compiled", _NOT_YET)]
    elif found is None:
        lines = [("compiled", f"for the emulator; it knows {len(kernel.spec.instructions)} instructions")]
    else:
        live = "" if found.live_registers is None else f", {found.live_registers} of them live between instructions"
        spilled = found.spill_stores + found.spill_loads + found.stack
        lines = [
            (
                "compiled",
                f"for {kernel.arch} by {found.compiler} in {found.compile_seconds:.1f} s: "
                f"{found.registers} registers per thread{live}, "
                f"{f'{spilled} bytes spilled' if spilled else 'nothing spilled'}; {shown(found.code_bytes)} of code, "
                f"{len(kernel.spec.instructions)} instructions",
            )
        ]
    if stepped_down:
        larger = "a larger arrangement" if stepped_down == 1 else f"{stepped_down} larger arrangements"
        lines.append(("stepped down", f"from {larger}, which did not fit into registers"))
    if driver:
        lines.append(("driver", driver))
    return lines


def _launches(onchip: OnChip, spec: KernelSpec | None) -> list[tuple[str, str]]:
    by_gemm = [held.name for held in onchip.held if held.gradient == "gemm"]
    times = (
        f"two per step, and between them a product by cuBLAS for {', '.join(by_gemm)}" if by_gemm else "one per step"
    )
    blocks = onchip.vps * onchip.options.groups
    shared = "" if spec is None else f", {shown(spec.chip.shared_bytes)} of shared memory each"
    return [("launches", f"{times}; {blocks} blocks of {THREADS} threads{shared}")]


def _memory(parameters: Distribution) -> list[tuple[str, str]]:
    kinds = [_kind(p) for p in parameters.places]
    counted = [
        f"{kinds.count(kind)} {kind if kinds.count(kind) == 1 else plural}"
        for kind, plural in (("matrix", "matrices"), ("vector", "vectors"), ("table", "tables"), ("array", "arrays"))
        if kind in kinds
    ]
    taken = shown(WORD_BYTES * parameters.end)
    return [("in memory", f"{', '.join(counted)}: {taken} with transposes, gradients and moments")]


def _precisions(parameters: Distribution) -> list[tuple[str, str]]:
    """Which matrices are not multiplied in float32."""
    found: dict[str, list[str]] = {}
    for p, place in parameters.places.items():
        if place.precision is not EXACT:
            found.setdefault(place.precision.name, []).append(p.name)
    return [("precision", f"{name}, of products with {', '.join(names)}") for name, names in found.items()]


def _kind(p: Parameter) -> str:
    if isinstance(p, Lookup):
        return "table"
    return {1: "vector", 2: "matrix"}.get(len(p.shape), "array")


def _explain_memory(parameters: Distribution, kernel: Machine | Specialized) -> str:
    if TARGETS[kernel.target].is_gpu:
        lines = [
            ("target", f"{kernel.target}: {counted(kernel.vps, 'virtual processor')} (thread blocks)"),
            ("compiled", _NOT_YET),
            *_memory(parameters),
        ]
        return "\n".join(note(f"{name:<15}", text) for name, text in lines) + "\n"
    rows = [_PARAMETERS, *(_row(parameters, p) for p in parameters.places)]
    averaged = any(place.average for place in parameters.places.values())
    rows = [row if averaged else row[:-1] for row in rows]
    table = columns(rows[:1], rows[1:], range(_LEFT), WIDTH)
    known = "" if kernel.spec is None else f"; the example takes {len(kernel.spec.instructions)} of its instructions"
    lines = [
        ("target", f"{kernel.target} ({kernel.arch}): {counted(kernel.vps, 'virtual processor')} (threads)"),
        ("kernel", f"one for all models, as weights stay in memory and shapes come with the script{known}"),
        (
            "matrices",
            f"panels of {parameters.panel} rows, which fill vector registers; a virtual processor multiplies by the "
            "same panels all the time and so finds them in its caches",
        ),
        *_memory(parameters),
        *_pairs(parameters, kernel.arch),
        ("launches", "one per step"),
    ]
    return "\n".join([*table, "", *(note(f"{name:<15}", text) for name, text in lines)]) + "\n"


def _pairs(parameters: Distribution, isa: str) -> list[tuple[str, str]]:
    if not any(place.rounded for place in parameters.places.values()):
        return []
    by = "vdpbf16ps (AVX512_BF16)" if multiplies_pairs(isa) else "float32 arithmetic of the same bits, no faster"
    return [("pairs", f"of bf16, for products, lie beside float32 weights; a step writes both; multiplied by {by}")]


def _row(parameters: Distribution, p: Parameter) -> tuple[str, ...]:
    place = parameters.places[p]
    nbytes, (pairs, transposed) = place.bytes, parameters.copies(p)
    packed = parameters.is_packed(p)
    return (
        p.name,
        _kind(p),
        "x".join(map(str, p.shape)) or "scalar",
        str(-(-p.shape[0] // parameters.panel)) if packed else "-",
        shown(nbytes + pairs),
        shown(transposed) if transposed else "-",
        shown(nbytes) if place.gradient else "-",
        shown(nbytes * len(place.moments)) if place.moments else "-",
        shown(nbytes) if place.average else "-",
    )
