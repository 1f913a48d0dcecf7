"""`vpps-inspect`: what vpps makes of a model and a batch, from the graph to machine code."""

from __future__ import annotations

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
    examples,
    inspected,
    show,
    workload_of,
)
from vpps.cli.options import TargetName
from vpps.cli.workload import REST

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


def main() -> None:
    """Entry point. Exit code 0, or 1 for an error, 2 for wrong usage, 130 after Ctrl-C."""
    app()
