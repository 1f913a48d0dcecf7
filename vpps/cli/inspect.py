"""`vpps-inspect`: what vpps makes of a model and a batch, from the graph to machine code."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from vpps.cli.console import app_named, exit_codes
from vpps.cli.inspected import (
    AnyWorkload,
    Arch,
    AsJson,
    BatchSize,
    Lines,
    Numbers,
    Output,
    Policy,
    Schedule,
    Target,
    Train,
    Vps,
    WorkloadName,
    chosen_target,
    emit,
    examples,
    inspected,
    show,
    show_listing,
    workload_of,
)
from vpps.cli.options import AUTO_TARGET, TargetName
from vpps.cli.streams import run_program
from vpps.cli.trace import SETTINGS as TRACE_SETTINGS
from vpps.cli.trace import trace
from vpps.cli.workload import REST
from vpps.inspection.drawing import draw
from vpps.inspection.inspection import cpu_asm, cpu_source
from vpps.inspection.kernel_report import KernelsReport
from vpps.targets import CPU, CUDA, TARGETS

PROGRAM = "vpps-inspect"

app = app_named(PROGRAM)


@app.callback()
def about() -> None:
    """Look at what vpps makes of a model and a batch: graph, cells, plan, script, kernel. Only `trace` launches."""


@app.command(
    context_settings=REST,
    **examples(
        f"{PROGRAM} source --target cpu --lines 120:160",
        f"{PROGRAM} source tree-lstm --arch sm_90 --no-headers",
        f"{PROGRAM} source tree-lstm --target cpu --tails",
        f"{PROGRAM} source tree-lstm --target simt -o kernel.cu",
    ),
)
def source(
    context: typer.Context,
    workload: AnyWorkload = None,
    batch_size: BatchSize = 16,
    target: Target = AUTO_TARGET,
    arch: Arch = None,
    vps: Vps = None,
    train: Train = True,
    no_headers: Annotated[
        bool,
        typer.Option(
            "--no-headers", "--named", help="Name the headers instead of putting their text in: other lines, then."
        ),
    ] = False,
    tails: Annotated[
        bool, typer.Option("--tails", help="What the cells add to the kernel of target cpu, a library of its own.")
    ] = False,
    compile: Annotated[
        bool,
        typer.Option(
            "--compile/--no-compile",
            help="Ask the compiler how many weights fit on the chip; without, show what would be tried first.",
        ),
    ] = True,
    lines: Lines = None,
    numbers: Numbers = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Source of the kernel, in the lines that compile errors name."""
    with exit_codes(PROGRAM):
        on_cpu = not TARGETS[chosen_target(target, arch)].is_gpu
        if workload is None and on_cpu and not tails:
            listing = cpu_source(named=no_headers)
        else:
            batch = workload_of(workload, batch_size, context.args)
            compiled = compile and not on_cpu
            found = inspected(batch, target, arch, vps, train=train, compiled=compiled)
            listing = found.tails() if tails else found.source(no_headers)
        show_listing(listing, lines, numbers, as_json, output)


@app.command(
    context_settings=REST,
    **examples(f"{PROGRAM} asm | less", f"{PROGRAM} asm tree-lstm --tails", f"{PROGRAM} asm -o kernel.s"),
)
def asm(
    context: typer.Context,
    workload: AnyWorkload = None,
    batch_size: BatchSize = 16,
    train: Train = True,
    tails: Annotated[bool, typer.Option("--tails", help="Of what the cells add to the kernel.")] = False,
    lines: Lines = None,
    numbers: Numbers = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Assembler of the compiled kernel of target cpu; takes objdump."""
    with exit_codes(PROGRAM):
        if workload is None and not tails:
            listing = cpu_asm()
        else:
            batch = workload_of(workload, batch_size, context.args)
            listing = inspected(batch, TargetName(CPU.name), train=train).asm(tails)
        show_listing(listing, lines, numbers, as_json, output)


@app.command(
    context_settings=REST,
    **examples(f"{PROGRAM} ptx tree-lstm --arch sm_90 -o kernel.ptx", f"{PROGRAM} ptx tree-lstm --arch sm_120 | head"),
)
def ptx(
    context: typer.Context,
    workload: WorkloadName,
    batch_size: BatchSize = 16,
    arch: Arch = None,
    vps: Vps = None,
    train: Train = True,
    lines: Lines = None,
    numbers: Numbers = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Intermediate code of a GPU's kernel; takes NVRTC, no GPU."""
    with exit_codes(PROGRAM):
        batch = workload_of(workload, batch_size, context.args)
        found = inspected(batch, TargetName(CUDA.name), arch, vps, train=train, compiled=True)
        show_listing(found.ptx(), lines, numbers, as_json, output)


@app.command(
    context_settings=REST,
    **examples(f"{PROGRAM} sass tree-lstm --arch sm_90 | less", f"{PROGRAM} sass tree-lstm --arch sm_75 -o k.sass"),
)
def sass(
    context: typer.Context,
    workload: WorkloadName,
    batch_size: BatchSize = 16,
    arch: Arch = None,
    vps: Vps = None,
    train: Train = True,
    lines: Lines = None,
    numbers: Numbers = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Machine code of a GPU's kernel; takes NVRTC and nvdisasm, no GPU."""
    with exit_codes(PROGRAM):
        batch = workload_of(workload, batch_size, context.args)
        found = inspected(batch, TargetName(CUDA.name), arch, vps, train=train, compiled=True)
        show_listing(found.sass(), lines, numbers, as_json, output)


@app.command(
    context_settings=REST,
    **examples(
        f"{PROGRAM} resources tree-lstm --arch sm_75 --arch sm_90 --arch sm_120",
        f"{PROGRAM} resources tree-lstm --target cpu",
        f"{PROGRAM} resources tree-lstm --arch sm_90 --json | jq .kernels[0].registers",
    ),
)
def resources(
    context: typer.Context,
    workload: WorkloadName,
    batch_size: BatchSize = 16,
    target: Target = AUTO_TARGET,
    arch: Annotated[
        list[str] | None,
        typer.Option(metavar="sm_XX", help="GPU to compile for, such as sm_90; several make a table."),
    ] = None,
    vps: Vps = None,
    train: Train = True,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Registers, spills, shared memory and code of compiled kernels, and where each keeps the weights."""
    with exit_codes(PROGRAM):
        batch = workload_of(workload, batch_size, context.args)
        archs: Sequence[str | None] = arch or [None]
        found = (inspected(batch, target, a, vps, train=train, compiled=True) for a in archs)
        show(KernelsReport(tuple(i.resources for i in found)), as_json, output)


@app.command(
    context_settings=REST,
    **examples(
        f"{PROGRAM} plan tree-lstm --batch-size 16",
        f"{PROGRAM} plan tree-lstm --hidden 512 --arch sm_90",
        f"{PROGRAM} plan my_model:batches --policy depth --json | jq .barriers",
    ),
)
def plan(
    context: typer.Context,
    workload: WorkloadName,
    batch_size: BatchSize = 16,
    target: Target = AUTO_TARGET,
    arch: Arch = None,
    vps: Vps = None,
    policy: Policy = None,
    schedule: Schedule = None,
    train: Train = True,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Levels, stages, steps, barriers, memory and index lists of a batch."""
    with exit_codes(PROGRAM):
        batch = workload_of(workload, batch_size, context.args)
        show(inspected(batch, target, arch, vps, policy, schedule, train).plan, as_json, output)


@app.command(
    context_settings=REST,
    **examples(
        f"{PROGRAM} script tree-lstm --vps 4",
        f"{PROGRAM} script tree-lstm --schedule paper --vps 4 --vp 2 --first 20",
        f"{PROGRAM} script tree-lstm --json | jq '.streams[0].instructions[].name'",
    ),
)
def script(
    context: typer.Context,
    workload: WorkloadName,
    batch_size: BatchSize = 1,
    target: Target = AUTO_TARGET,
    arch: Arch = None,
    vps: Vps = None,
    policy: Policy = None,
    schedule: Schedule = None,
    train: Train = True,
    vp: Annotated[int | None, typer.Option(min=0, help="Of this virtual processor only.")] = None,
    first: Annotated[int | None, typer.Option(min=1, metavar="N", help="N instructions of each stream.")] = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """The instructions of every virtual processor, with the cell and operation that each comes from."""
    with exit_codes(PROGRAM):
        batch = workload_of(workload, batch_size, context.args)
        found = inspected(batch, target, arch, vps, policy, schedule, train).script
        found = found if vp is None else found.of(vp)
        show(found if first is None else found.first(first), as_json, output)


@app.command(
    context_settings=REST,
    **examples(
        f"{PROGRAM} cell tree-lstm --name inner",
        f"{PROGRAM} cell lattice-gru --inference",
        f"VPPS_PASSES=-fusion {PROGRAM} cell my_model:batches --json",
    ),
)
def cell(
    context: typer.Context,
    workload: WorkloadName,
    name: Annotated[str | None, typer.Option(help="Of the cells of this name only.")] = None,
    batch_size: BatchSize = 1,
    target: Target = AUTO_TARGET,
    arch: Arch = None,
    vps: Vps = None,
    policy: Policy = None,
    schedule: Schedule = None,
    train: Train = True,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Each cell before and after every pass of the cell compiler, its parts, its instructions and what was fused."""
    with exit_codes(PROGRAM):
        batch = workload_of(workload, batch_size, context.args)
        found = inspected(batch, target, arch, vps, policy, schedule, train).cells
        show(found if name is None else found.named(name), as_json, output)


class GraphFormat(StrEnum):
    DOT = "dot"
    SVG = "svg"
    TEXT = "text"


class LayoutName(StrEnum):
    AUTO = "auto"
    GRAPHVIZ = "graphviz"
    LEVELS = "levels"


FORMATS = {
    ".svg": GraphFormat.SVG, ".dot": GraphFormat.DOT, ".gv": GraphFormat.DOT, ".txt": GraphFormat.TEXT,
    "": GraphFormat.DOT,
}  # fmt: skip
"""By the end of a file's name."""


@app.command(
    context_settings=REST,
    **examples(
        f"{PROGRAM} graph tree-lstm -o tree.svg",
        f"{PROGRAM} graph tree-lstm | dot -Tpdf -o tree.pdf",
        f"{PROGRAM} graph lattice-lstm --calls 40 --format text",
    ),
)
def graph(
    context: typer.Context,
    workload: WorkloadName,
    batch_size: Annotated[int, typer.Option("--batch-size", "--examples", min=1, help="Examples in the graph.")] = 1,
    calls: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the first N vertices.")] = None,
    format: Annotated[
        GraphFormat | None, typer.Option(help="What to write.", show_default="as the file is called, else dot")
    ] = None,
    layout: Annotated[
        LayoutName,
        typer.Option(help="Who places vertices in an SVG: Graphviz, where it is installed, or vpps, level by level."),
    ] = LayoutName.AUTO,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """The graph of a batch, coloured by level: for Graphviz, as SVG, as text, or as JSON."""
    with exit_codes(PROGRAM):
        if format is None and not as_json and output is not None and output.suffix not in (*FORMATS, ".json"):
            known = ", ".join(filter(None, FORMATS))
            raise typer.BadParameter(f"{output}: name it {known} or .json, or say --format", param_hint="--output")
        drawing = draw(workload_of(workload, batch_size, context.args).first(1)[0][0], calls)
        if format is None:
            suffix = output.suffix if output is not None else ""
            format = FORMATS.get(suffix, GraphFormat.DOT)
            as_json = as_json or suffix == ".json"
        if as_json or format is GraphFormat.TEXT:
            show(drawing, as_json, output)
        else:
            emit(drawing.svg(layout.value) if format is GraphFormat.SVG else drawing.dot(), output)


app.command(**TRACE_SETTINGS)(trace)


def main() -> None:
    """Entry point. Exit code 0, or 1 for an error, 2 for wrong usage, 130 after Ctrl-C, 141 where nobody reads on."""
    run_program(PROGRAM, app)
