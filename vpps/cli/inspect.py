"""`vpps-inspect`: what vpps makes of a model and a batch, from the graph to machine code."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from vpps.cli.console import app_named, exit_codes
from vpps.cli.inspected import (
    Arch,
    AsJson,
    BatchSize,
    Output,
    Policy,
    Schedule,
    Target,
    Train,
    Vps,
    WorkloadName,
    emit,
    examples,
    inspected,
    show,
    workload_of,
)
from vpps.cli.options import TargetName
from vpps.cli.workload import REST
from vpps.inspection.drawing import draw

PROGRAM = "vpps-inspect"

app = app_named(PROGRAM)


@app.callback()
def about() -> None:
    """Look at what vpps makes of a model and a batch: graph, cells, plan, script, kernel. Nothing is launched."""


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
    target: Target = TargetName.AUTO,
    arch: Arch = None,
    vps: Vps = None,
    policy: Policy = "sinks-last",
    schedule: Schedule = "vector",
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
    target: Target = TargetName.AUTO,
    arch: Arch = None,
    vps: Vps = None,
    policy: Policy = "sinks-last",
    schedule: Schedule = "vector",
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
    target: Target = TargetName.AUTO,
    arch: Arch = None,
    vps: Vps = None,
    policy: Policy = "sinks-last",
    schedule: Schedule = "vector",
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
        drawing = draw(workload_of(workload, batch_size, context.args).first(1)[0][0], calls)
        if format is None:
            suffix = output.suffix if output is not None else ""
            format = {".svg": GraphFormat.SVG, ".txt": GraphFormat.TEXT}.get(suffix, GraphFormat.DOT)
            as_json = as_json or suffix == ".json"
        if as_json or format is GraphFormat.TEXT:
            show(drawing, as_json, output)
        else:
            emit(drawing.svg(layout.value) if format is GraphFormat.SVG else drawing.dot(), output)


def main() -> None:
    """Entry point. Exit code 0, or 1 for an error, 2 for wrong usage, 130 after Ctrl-C."""
    app()
