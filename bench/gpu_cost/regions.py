"""Assigns machine instructions to regions of the kernel."""

from __future__ import annotations

from gpu_cost.machine_code import Code

# (region, function, text of a source line). An instruction belongs to the first region whose function contains it, on a
# line with the text. All other instructions belong to the routine that the kernel calls, so that none is omitted.
REGIONS = (
    ("bringing chunks of vectors", "VectorPipeline::bring", ""),
    ("bringing few vectors", "bring_vectors", ""),
    ("weights times vectors", "Lane::multiply", ""),
    ("adding up over lanes", "sum_over_lanes", ""),
    ("weights times vectors", "slot_product", ""),
    ("owned rows: divisions", "Owned::Owned", ""),
    ("product: adding up over warps, bias, store", "held_matvec", "mine.each"),
    ("gradients: product", "add_products", ""),
    ("update: a weight's step", "step", "Rule::step"),
    ("tail: sums of lists", "list_sum", ""),
    ("tail: where rows lie, loads, stores", "Unit::row", ""),
    ("tail: its program", "compute_alone", ""),
    ("tail: its program", "compute_chained", ""),
    ("signal: fence", "add_release", ""),
    ("wait: polls", "load_relaxed", ""),
    ("dispatch: fetch", "fetch", ""),
    ("dispatch: slices", "slices_of", ""),
)


def region_of(code: Code, pc: int) -> str:
    """Name of an instruction's region."""
    if pc < 0:
        return "end of the launch"
    lines = code.instructions[pc].lines
    functions = [code.functions[line] for line in lines]
    for what, function, says in REGIONS:
        if any(f == function and says in code.source[line - 1] for line, f in zip(lines, functions, strict=True)):
            return what
    outside = [f for f in functions if f != "vpps_kernel"]
    if not outside or outside[-1].endswith("::decode") or outside[-1].startswith(("Reader", "opcode_of", "size_of")):
        return "dispatch: decoding, switch"
    return f"{outside[-1]}: rest"
