"""Writes the text of `explain` for handles and for kernels compiled ahead of time: plain text of 110 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vpps.kernel.chip import THREADS
from vpps.kernel.host_compiler import multiplies_pairs
from vpps.kernel.spec import KernelSpec
from vpps.model.model import Lookup, Parameter
from vpps.model.precisions import ALL_EXACT
from vpps.ops.element import WORD_BYTES
from vpps.ops.precision import EXACT
from vpps.placement.distribution import Distribution
from vpps.placement.onchip import OnChip
from vpps.placement.onchip.report import explain as explain_onchip
from vpps.runtime.machine import Machine
from vpps.targets import TARGETS
from vpps.text import WIDTH, Text, columns, counted, in_bytes, labelled, note

if TYPE_CHECKING:
    from vpps.engine.ahead import Specialized
    from vpps.engine.engine import Engine
    from vpps.planner.plan import Plan

MOST_WALKED = 20_000
"""Largest number of vertices whose index lists are described; larger graphs would take seconds."""

_PARAMETERS = ("parameter", "kind", "shape", "panels", "weights", "transpose", "gradient", "moments", "average")
_LEFT = 3  # number of columns with text; columns with numbers follow
_NOT_YET = (
    "not yet: it will be for the first fb, forward or gradients, or ahead of them with Handle(..., example=(graph, "
    "loss))"
)


def explain(engine: Engine, moments: int, trains: bool, tuned: str) -> Text:
    """Return the text of `Handle.explain`: the kernel, the latest calls, and the cell compiler's work on each cell.

    Args:
        moments: number of moments that the optimizer keeps for each weight.
        trains: True for a training handle.
        tuned: result of tuning, in words.
    """
    machine, store, planner, plan = engine.machine, engine.store, engine.planner, engine.plan
    averages = store.ema is not None
    parameters = Distribution(
        engine.model, machine.vps, machine.panel, moments, trains, averages=averages, precisions=store.precisions
    )
    text: str = explain_kernel(parameters, engine.arrangement.onchip, machine, engine.stepped_down, machine.driver)
    lines = []
    if store.precisions != ALL_EXACT:
        lines.append(("products", store.precisions.describe()))
    if plan is not None:
        memory = engine.memory
        latest = f"{in_bytes(memory.batch)} for its batch, {in_bytes(memory.script)} of script"
        peak = f"{in_bytes(memory.peak)} of the pool at most so far; the latest call: {latest}"
        lines.append(("peak", peak))
    lines += [("tuned", tuned)] if tuned else []
    if plan is not None and len(plan.graph) <= MOST_WALKED:
        lines.append(("latest call", _latest(plan)))
    text += labelled(lines)
    for name, did in planner.cells.explain() if planner is not None else ():
        text += f"\ncell {name}\n" + "".join(note(f"  {what:<23}", sentence) + "\n" for what, sentence in did)
    return Text(text)


def explain_kernel(
    parameters: Distribution,
    onchip: OnChip | None,
    kernel: Machine | Specialized,
    stepped_down: int,
    driver: str = "",
) -> Text:
    """Describe where each weight is kept and why, and the kernel's resources.

    Args:
        parameters: the parameters' places in memory.
        onchip: contents of the chip; None if the target does not place weights on a chip.
        kernel: the machine (it may have no kernel yet, or one for all models on cpu), or the kernel compiled ahead.
        stepped_down: number of larger weight arrangements that spilled.
        driver: version of the GPU's driver; "" if the kernel does not run on a GPU.
    """
    if onchip is None:
        text = _explain_memory(parameters, kernel)
    else:
        moments = max((len(place.moments) for place in parameters.places.values()), default=0)
        compiled = _compiled(kernel, stepped_down, driver)
        text = explain_onchip(onchip, moments, [*compiled, *_launches(onchip, kernel.spec), *_memory(parameters)])
    return Text(text + labelled(_precisions(parameters)))


def _latest(plan: Plan) -> str:
    """Describe a plan's barriers and the data that it reads through index lists."""
    from vpps.planner.gathering import gathering

    words = int((plan.account.lists[:, 1] - plan.account.lists[:, 0]).sum())
    gathered = gathering(plan).describe(training=plan.loss_slot >= 0)
    return f"{plan.n_barriers:,} barriers; lists of {words:,} words, gathered through them {gathered}"


def _compiled(kernel: Machine | Specialized, stepped_down: int, driver: str) -> list[tuple[str, str]]:
    found = kernel.resources
    if kernel.spec is None:
        lines = [("compiled", _NOT_YET)]
    elif found is None:
        lines = [("compiled", f"for the emulator; it knows {len(kernel.spec.instructions)} instructions")]
    else:
        bytes_spilled = found.spill_stores + found.spill_loads + found.stack
        spilled = f"{bytes_spilled} bytes spilled" if bytes_spilled else "nothing spilled"
        lines = [
            (
                "compiled",
                f"for {kernel.arch} by {found.compiler} in {found.compile_seconds:.1f} s: "
                f"{found.registers} registers per thread, "
                f"{spilled}; {in_bytes(found.code_bytes)} of code, {len(kernel.spec.instructions)} instructions",
            )
        ]
    if stepped_down:
        larger = "a larger arrangement" if stepped_down == 1 else f"{stepped_down} larger arrangements"
        lines.append(("stepped down", f"from {larger}, which did not fit into registers"))
    if driver:
        lines.append(("driver", driver))
    return lines


def _launches(onchip: OnChip, spec: KernelSpec | None) -> list[tuple[str, str]]:
    blocks = onchip.vps * onchip.groups
    shared = "" if spec is None else f", {in_bytes(spec.chip.shared_bytes)} of shared memory each"
    return [("launches", f"one per step; {blocks} blocks of {THREADS} threads{shared}")]


def _memory(parameters: Distribution) -> list[tuple[str, str]]:
    kinds = [_kind(p) for p in parameters.places]
    counted = [
        f"{kinds.count(kind)} {kind if kinds.count(kind) == 1 else plural}"
        for kind, plural in (("matrix", "matrices"), ("vector", "vectors"), ("table", "tables"), ("array", "arrays"))
        if kind in kinds
    ]
    taken = in_bytes(WORD_BYTES * parameters.end)
    return [("in memory", f"{', '.join(counted)}: {taken} with transposes, gradients and moments")]


def _precisions(parameters: Distribution) -> list[tuple[str, str]]:
    """List the matrices that are not multiplied in float32."""
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
        return labelled(lines)
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
    return "\n".join([*table, "", labelled(lines)])


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
        in_bytes(nbytes + pairs),
        in_bytes(transposed) if transposed else "-",
        in_bytes(nbytes) if place.gradient else "-",
        in_bytes(nbytes * len(place.moments)) if place.moments else "-",
        in_bytes(nbytes) if place.average else "-",
    )
