"""`vpps-inspect trace`: what every virtual processor does when, as a summary and a file for Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import vpps
from vpps.cli.console import exit_codes
from vpps.cli.inspected import (
    AsJson,
    BatchSize,
    Policy,
    Schedule,
    Train,
    Vps,
    WorkloadName,
    chosen_target,
    examples,
    show,
    workload_of,
)
from vpps.cli.options import TargetName
from vpps.cli.workload import REST, Workload
from vpps.inspection.trace import Trace, checked

PROGRAM = "vpps-inspect"
WARM_UP = 2
"""Batches before: kernels are compiled, memory is touched for the first time, the planner in C++ comes along."""

Target = Annotated[TargetName, typer.Option(show_default="cuda where there is a GPU, else cpu", help="What runs it.")]
Steps = Annotated[int, typer.Option(min=1, help="Batches to record.")]
File = Annotated[
    Path | None,
    typer.Option("--output", "-o", dir_okay=False, help="Write the launches to this file, for ui.perfetto.dev."),
]
Page = Annotated[
    Path | None,
    typer.Option("--html", dir_okay=False, help="Write the summary to this file, as a page."),
]

SETTINGS = {
    "context_settings": REST,
    **examples(
        f"{PROGRAM} trace tree-lstm --batch-size 16 --steps 3 -o step.json",
        f"{PROGRAM} trace tree-lstm --vps 1 --inference",
        f"{PROGRAM} trace my_model:batches --json | jq .shares",
    ),
}


def trace(
    context: typer.Context,
    workload: WorkloadName,
    batch_size: BatchSize = 16,
    steps: Steps = 3,
    target: Target = TargetName.AUTO,
    vps: Vps = None,
    policy: Policy = None,
    schedule: Schedule = None,
    train: Train = True,
    output: File = None,
    page: Page = None,
    as_json: AsJson = False,
) -> None:
    """Run some batches, and say where the time of their launches went: shares, critical path, cells, what would help.

    Recorded is what every virtual processor executes, with start and end; two batches come before, unrecorded.
    """
    with exit_codes(PROGRAM):
        for path in (output, page):
            if path is not None:
                checked(path)
        batches = workload_of(workload, batch_size, context.args)
        found = recorded(batches, steps, chosen_target(target, None), vps, policy, schedule, train)
        if output is not None:
            found.write_perfetto(output)
        if page is not None:
            settings = f", {batches.settings}" if batches.settings else ""
            found.write_html(page, f"{batches.name}, batches of {batch_size}{settings}")
        show(found.summary(), as_json, None)
        if not as_json:
            for path, where in ((output, "open it in ui.perfetto.dev"), (page, "open it in a browser")):
                if path is not None:
                    print(f"\n{path}: {where}")


def recorded(
    workload: Workload,
    steps: int,
    target: str = "cpu",
    vps: int | None = None,
    policy: str | None = None,
    schedule: str | None = None,
    train: bool = True,
) -> Trace:
    """Launches of a workload, once it has warmed up.

    Raises:
        HandleError: an argument is wrong, or the target cannot be used.
        WorkloadError: there are no batches.
    """
    batches = workload.first(WARM_UP + steps)
    chosen = [batches[k % len(batches)] for k in range(WARM_UP + steps)]  # a function may give fewer
    optimizer = workload.optimizer if train else None
    with vpps.Handle(
        workload.model, optimizer, target=target, vps=vps, policy=policy, schedule=schedule, train=train, timeline=True
    ) as handle:

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
