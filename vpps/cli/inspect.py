"""`vpps-inspect`: shows the compilation of a model and a batch, from the graph to machine code."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import vpps
from vpps.cli.console import Version, app_named
from vpps.cli.inspected import PROGRAM, AnyWorkload, Request, chosen_target, command
from vpps.cli.options import TargetName, policy_for, precisions_in
from vpps.cli.streams import run_program
from vpps.graph.drawing import draw
from vpps.report.cells import cells_text
from vpps.report.inspection import cpu_asm, cpu_source
from vpps.report.kernel_report import kernels_text
from vpps.report.script_report import script_text
from vpps.report.trace import Trace, checked
from vpps.targets import CPU, CUDA, TARGETS

app = app_named(PROGRAM)
shown = partial(command, app)


@app.callback()
def about(version: Version = False) -> None:
    """Show how vpps compiles a model and a batch: graph, cells, plan, script, kernel. Only `trace` launches kernels."""


@shown(
    f"{PROGRAM} source --target cpu --lines 120:160",
    f"{PROGRAM} source tree-lstm --arch sm_90 --no-headers",
    f"{PROGRAM} source tree-lstm --target cpu --tails",
    f"{PROGRAM} source tree-lstm --target simt -o kernel.cu",
    options="target arch vps precision train",
    language="cpp",
    types={"workload": AnyWorkload},
    workload=None,
)
def source(
    request: Request,
    no_headers: Annotated[
        bool,
        typer.Option(
            "--no-headers", "--named", help="Include the headers by name, not as text; this changes line numbers."
        ),
    ] = False,
    tails: Annotated[
        bool, typer.Option("--tails", help="Show the separate library of fused code of the cells (target cpu).")
    ] = False,
    compile: Annotated[
        bool,
        typer.Option(
            "--compile/--no-compile",
            help="Compile to find how many weights fit on the chip; --no-compile shows the first attempt.",
        ),
    ] = True,
) -> str:
    """Show the source of the kernel; compile errors refer to its line numbers."""
    on_cpu = not TARGETS[chosen_target(request.target, request.arch)].is_gpu
    if request.workload is None and on_cpu and not tails:
        return cpu_source(named=no_headers, rounds=precisions_in(request.precision).is_reduced)
    found = request.inspected(compiled=compile and not on_cpu)
    return found.tails() if tails else found.source(no_headers)


@shown(
    f"{PROGRAM} asm | less",
    f"{PROGRAM} asm tree-lstm --tails",
    f"{PROGRAM} asm -o kernel.s",
    options="precision train",
    language="objdump",
    types={"workload": AnyWorkload},
    workload=None,
    target=TargetName(CPU.name),
)
def asm(
    request: Request, tails: Annotated[bool, typer.Option("--tails", help="Show the cells' library.")] = False
) -> str:
    """Show the assembly code of target cpu's compiled kernel; needs objdump."""
    if request.workload is None and not tails:
        return cpu_asm(rounds=precisions_in(request.precision).is_reduced)
    return request.inspected().asm(tails)


@shown(
    f"{PROGRAM} ptx tree-lstm --arch sm_90 -o kernel.ptx",
    f"{PROGRAM} ptx tree-lstm --arch sm_120 | head",
    options="arch vps precision train",
    language="ptx",
    target=TargetName(CUDA.name),
)
def ptx(request: Request) -> str:
    """Show the intermediate code (PTX) of a GPU's kernel; needs NVRTC, but no GPU."""
    return request.inspected(compiled=True).ptx()


@shown(
    f"{PROGRAM} sass tree-lstm --arch sm_90 | less",
    f"{PROGRAM} sass tree-lstm --arch sm_75 -o k.sass",
    options="arch vps precision train",
    language="text",
    target=TargetName(CUDA.name),
)
def sass(request: Request) -> str:
    """Show the machine code of a GPU's kernel; needs NVRTC and nvdisasm, but no GPU."""
    return request.inspected(compiled=True).sass()


@shown(
    f"{PROGRAM} resources tree-lstm --arch sm_75 --arch sm_90 --arch sm_120",
    f"{PROGRAM} resources tree-lstm --target cpu",
    options="target vps precision train",
)
def resources(
    request: Request,
    arch: Annotated[
        list[str] | None,
        typer.Option(metavar="sm_XX", help="GPU to compile for, such as sm_90; repeat it for a table of several."),
    ] = None,
) -> str:
    """Show registers, spills, shared memory and code size of compiled kernels, and where each keeps the weights."""
    archs: Sequence[str | None] = arch or [None]
    found = [request.inspected(compiled=True, arch=a) for a in archs]
    return kernels_text([x.compiled for x in found])


@shown(
    f"{PROGRAM} plan tree-lstm --batch-size 16",
    f"{PROGRAM} plan tree-lstm --hidden 512 --arch sm_90",
    f"{PROGRAM} plan my_model:batches --policy depth",
    options="target arch vps policy schedule precision train",
)
def plan(request: Request) -> str:
    """Show levels, stages, steps, barriers, memory and index lists of a batch."""
    return str(request.inspected().plan)


@shown(
    f"{PROGRAM} script tree-lstm --vps 4",
    f"{PROGRAM} script tree-lstm --schedule paper --vps 4 --vp 2 --first 20",
    options="target arch vps policy schedule precision train",
    batch_size=1,
)
def script(
    request: Request,
    vp: Annotated[int | None, typer.Option(min=0, help="Show only this virtual processor.")] = None,
    first: Annotated[int | None, typer.Option(min=1, metavar="N", help="Show N instructions per stream.")] = None,
) -> str:
    """Show the instructions of every virtual processor, with the cell and operation of each."""
    return script_text(request.inspected().plan_made, vp, first)


@shown(
    f"{PROGRAM} cell tree-lstm --name inner",
    f"{PROGRAM} cell lattice-gru --inference",
    f"VPPS_PASSES=-fusion {PROGRAM} cell my_model:batches",
    options="target arch vps policy schedule precision train",
    batch_size=1,
)
def cell(request: Request, name: Annotated[str | None, typer.Option(help="Only cells of this name.")] = None) -> str:
    """Show each cell before and after every pass of the cell compiler, its parts, instructions and fusions."""
    found = request.inspected()
    return cells_text(found.plan_made, found.planner, name)


class GraphFormat(StrEnum):
    DOT = "dot"
    SVG = "svg"
    TEXT = "text"


FORMATS = {
    ".svg": GraphFormat.SVG, ".dot": GraphFormat.DOT, ".gv": GraphFormat.DOT, ".txt": GraphFormat.TEXT,
    "": GraphFormat.DOT,
}  # fmt: skip
"""Formats by file name suffix."""


@shown(
    f"{PROGRAM} graph tree-lstm -o tree.svg",
    f"{PROGRAM} graph tree-lstm | dot -Tpdf -o tree.pdf",
    f"{PROGRAM} graph lattice-lstm --calls 40 --format text",
    types={"batch_size": Annotated[int, typer.Option("--batch-size", "--examples", min=1, help="Examples shown.")]},
    batch_size=1,
)
def graph(
    request: Request,
    calls: Annotated[int | None, typer.Option(min=1, metavar="N", help="Show only the first N vertices.")] = None,
    format: Annotated[
        GraphFormat | None, typer.Option(help="Output format.", show_default="from the file name, else dot")
    ] = None,
) -> str:
    """Draw the graph of a batch, coloured by level: for Graphviz, as SVG, or as text."""
    suffix = request.output.suffix if request.output is not None and format is None else ""
    if suffix not in FORMATS:
        known = ", ".join(filter(None, FORMATS))
        raise typer.BadParameter(f"{request.output}: name it {known}, or give --format", param_hint="--output")
    drawing = draw(request.batches.first(1)[0][0], calls)
    format = format or FORMATS.get(suffix, GraphFormat.DOT)
    if format is GraphFormat.TEXT:
        return str(drawing)
    return drawing.svg() if format is GraphFormat.SVG else drawing.dot()


WARM_UP = 2
"""Unrecorded batches before a trace, in which kernels compile, memory is touched first, and the C++ planner loads."""


@shown(
    f"{PROGRAM} trace tree-lstm --batch-size 16 --steps 3 -o step.json",
    f"{PROGRAM} trace tree-lstm --vps 1 --inference",
    f"{PROGRAM} trace my_model:batches",
    options="target vps policy schedule precision train",
    types={
        "target": Annotated[
            TargetName, typer.Option(show_default="cuda if there is a GPU, else cpu", help="Target to use.")
        ]
    },
)
def trace(
    request: Request,
    steps: Annotated[int, typer.Option(min=1, help="Batches to record.")] = 3,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", dir_okay=False, help="Write the launches to this file for ui.perfetto.dev."),
    ] = None,
) -> str:
    """Run some batches and summarize the time of their launches: shares, critical path, cells.

    The trace records every instruction of every virtual processor, with start and end, after two warm-up batches.
    """
    if output is not None:
        checked(output)
    found = _recorded(request, steps)
    text = str(found.summary())
    if output is not None:
        found.write_perfetto(output)
        text += f"\n{output}: open it in ui.perfetto.dev\n"
    return text


def _recorded(request: Request, steps: int) -> Trace:
    """Record launches of a workload after a warm-up. Raises HandleError, or WorkloadError if there are no batches."""
    workload, train = request.batches, request.train
    batches = workload.first(WARM_UP + steps)
    chosen = [batches[k % len(batches)] for k in range(WARM_UP + steps)]  # a function may return fewer batches
    with vpps.Handle(
        workload.model, workload.optimizer if train else None, target=chosen_target(request.target, None),
        vps=request.vps, policy=policy_for(request.policy, chosen[0][0]), schedule=request.schedule, train=train,
        timeline=True, precision=precisions_in(request.precision).written,
    ) as handle:  # fmt: skip

        def run(graph: vpps.Graph, loss: vpps.Expression) -> None:
            if train:
                handle.fb(graph, loss)
            else:
                handle.forward(graph, [loss])

        for graph, loss in chosen[:WARM_UP]:
            run(graph, loss)
        with handle.trace() as found:
            for graph, loss in chosen[WARM_UP:]:
                run(graph, loss)
    return found


def main() -> None:
    """Run the program. Exit code: 0, 1 for an error, 2 for wrong usage, 130 after Ctrl-C, 141 if the reader is gone."""
    run_program(PROGRAM, app)
