"""`vpps-inspect`: what vpps makes of a model and a batch, from the graph to machine code."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import vpps
from vpps.cli.console import Version, app_named
from vpps.cli.inspected import PROGRAM, AnyWorkload, Asked, chosen_target, command
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
    """Look at what vpps makes of a model and a batch: graph, cells, plan, script, kernel. Only `trace` launches."""


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
    asked: Asked,
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
) -> str:
    """Source of the kernel, in the lines that compile errors name."""
    on_cpu = not TARGETS[chosen_target(asked.target, asked.arch)].is_gpu
    if asked.workload is None and on_cpu and not tails:
        return cpu_source(named=no_headers, rounds=precisions_in(asked.precision).is_reduced)
    found = asked.inspected(compiled=compile and not on_cpu)
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
    asked: Asked, tails: Annotated[bool, typer.Option("--tails", help="Of what the cells add to the kernel.")] = False
) -> str:
    """Assembler of the compiled kernel of target cpu; takes objdump."""
    if asked.workload is None and not tails:
        return cpu_asm(rounds=precisions_in(asked.precision).is_reduced)
    return asked.inspected().asm(tails)


@shown(
    f"{PROGRAM} ptx tree-lstm --arch sm_90 -o kernel.ptx",
    f"{PROGRAM} ptx tree-lstm --arch sm_120 | head",
    options="arch vps precision train",
    language="ptx",
    target=TargetName(CUDA.name),
)
def ptx(asked: Asked) -> str:
    """Intermediate code of a GPU's kernel; takes NVRTC, no GPU."""
    return asked.inspected(compiled=True).ptx()


@shown(
    f"{PROGRAM} sass tree-lstm --arch sm_90 | less",
    f"{PROGRAM} sass tree-lstm --arch sm_75 -o k.sass",
    options="arch vps precision train",
    language="text",
    target=TargetName(CUDA.name),
)
def sass(asked: Asked) -> str:
    """Machine code of a GPU's kernel; takes NVRTC and nvdisasm, no GPU."""
    return asked.inspected(compiled=True).sass()


@shown(
    f"{PROGRAM} resources tree-lstm --arch sm_75 --arch sm_90 --arch sm_120",
    f"{PROGRAM} resources tree-lstm --target cpu",
    options="target vps precision train",
)
def resources(
    asked: Asked,
    arch: Annotated[
        list[str] | None,
        typer.Option(metavar="sm_XX", help="GPU to compile for, such as sm_90; several make a table."),
    ] = None,
) -> str:
    """Registers, spills, shared memory and code of compiled kernels, and where each keeps the weights."""
    archs: Sequence[str | None] = arch or [None]
    found = [asked.inspected(compiled=True, arch=a) for a in archs]
    return kernels_text([x.compiled for x in found])


@shown(
    f"{PROGRAM} plan tree-lstm --batch-size 16",
    f"{PROGRAM} plan tree-lstm --hidden 512 --arch sm_90",
    f"{PROGRAM} plan my_model:batches --policy depth",
    options="target arch vps policy schedule precision train",
)
def plan(asked: Asked) -> str:
    """Levels, stages, steps, barriers, memory and index lists of a batch."""
    return str(asked.inspected().plan)


@shown(
    f"{PROGRAM} script tree-lstm --vps 4",
    f"{PROGRAM} script tree-lstm --schedule paper --vps 4 --vp 2 --first 20",
    options="target arch vps policy schedule precision train",
    batch_size=1,
)
def script(
    asked: Asked,
    vp: Annotated[int | None, typer.Option(min=0, help="Of this virtual processor only.")] = None,
    first: Annotated[int | None, typer.Option(min=1, metavar="N", help="N instructions of each stream.")] = None,
) -> str:
    """The instructions of every virtual processor, with the cell and operation that each comes from."""
    return script_text(asked.inspected().plan_made, vp, first)


@shown(
    f"{PROGRAM} cell tree-lstm --name inner",
    f"{PROGRAM} cell lattice-gru --inference",
    f"VPPS_PASSES=-fusion {PROGRAM} cell my_model:batches",
    options="target arch vps policy schedule precision train",
    batch_size=1,
)
def cell(asked: Asked, name: Annotated[str | None, typer.Option(help="Of the cells of this name only.")] = None) -> str:
    """Each cell before and after every pass of the cell compiler, its parts, its instructions and what was fused."""
    found = asked.inspected()
    return cells_text(found.plan_made, found.planner, name)


class GraphFormat(StrEnum):
    DOT = "dot"
    SVG = "svg"
    TEXT = "text"


FORMATS = {
    ".svg": GraphFormat.SVG, ".dot": GraphFormat.DOT, ".gv": GraphFormat.DOT, ".txt": GraphFormat.TEXT,
    "": GraphFormat.DOT,
}  # fmt: skip
"""By the end of a file's name."""


@shown(
    f"{PROGRAM} graph tree-lstm -o tree.svg",
    f"{PROGRAM} graph tree-lstm | dot -Tpdf -o tree.pdf",
    f"{PROGRAM} graph lattice-lstm --calls 40 --format text",
    types={"batch_size": Annotated[int, typer.Option("--batch-size", "--examples", min=1, help="In the graph.")]},
    batch_size=1,
)
def graph(
    asked: Asked,
    calls: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the first N vertices.")] = None,
    format: Annotated[
        GraphFormat | None, typer.Option(help="What to write.", show_default="as the file is called, else dot")
    ] = None,
) -> str:
    """The graph of a batch, coloured by level: for Graphviz, as SVG, or as text."""
    suffix = asked.output.suffix if asked.output is not None and format is None else ""
    if suffix not in FORMATS:
        known = ", ".join(filter(None, FORMATS))
        raise typer.BadParameter(f"{asked.output}: name it {known}, or say --format", param_hint="--output")
    drawing = draw(asked.batches.first(1)[0][0], calls)
    format = format or FORMATS.get(suffix, GraphFormat.DOT)
    if format is GraphFormat.TEXT:
        return str(drawing)
    return drawing.svg() if format is GraphFormat.SVG else drawing.dot()


WARM_UP = 2
"""Batches before: kernels are compiled, memory is touched for the first time, the planner in C++ comes along."""


@shown(
    f"{PROGRAM} trace tree-lstm --batch-size 16 --steps 3 -o step.json",
    f"{PROGRAM} trace tree-lstm --vps 1 --inference",
    f"{PROGRAM} trace my_model:batches",
    options="target vps policy schedule precision train",
    types={
        "target": Annotated[
            TargetName, typer.Option(show_default="cuda where there is a GPU, else cpu", help="What runs it.")
        ]
    },
)
def trace(
    asked: Asked,
    steps: Annotated[int, typer.Option(min=1, help="Batches to record.")] = 3,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", dir_okay=False, help="Write the launches to this file, for ui.perfetto.dev."),
    ] = None,
) -> str:
    """Run some batches, and say where the time of their launches went: shares, critical path, cells.

    Recorded is what every virtual processor executes, with start and end; two batches come before, unrecorded.
    """
    if output is not None:
        checked(output)
    found = _recorded(asked, steps)
    text = str(found.summary())
    if output is not None:
        found.write_perfetto(output)
        text += f"\n{output}: open it in ui.perfetto.dev\n"
    return text


def _recorded(asked: Asked, steps: int) -> Trace:
    """Launches of a workload, once it has warmed up. Raises HandleError, and WorkloadError: there are no batches."""
    workload, train = asked.batches, asked.train
    batches = workload.first(WARM_UP + steps)
    chosen = [batches[k % len(batches)] for k in range(WARM_UP + steps)]  # a function may give fewer
    with vpps.Handle(
        workload.model, workload.optimizer if train else None, target=chosen_target(asked.target, None), vps=asked.vps,
        policy=policy_for(asked.policy, chosen[0][0]), schedule=asked.schedule, train=train, timeline=True,
        precision=precisions_in(asked.precision).written,
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
    """Entry point. Exit code 0, or 1 for an error, 2 for wrong usage, 130 after Ctrl-C, 141 where nobody reads on."""
    run_program(PROGRAM, app)
