"""`vpps-inspect trace`: what every virtual processor does when, as a summary and a file for Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import vpps
from vpps.cli.inspected import PROGRAM, Asked, chosen_target, written
from vpps.cli.options import TargetName
from vpps.cli.workload import Workload
from vpps.report.trace import Trace, checked
from vpps.targets import CPU

WARM_UP = 2
"""Batches before: kernels are compiled, memory is touched for the first time, the planner in C++ comes along."""

Target = Annotated[TargetName, typer.Option(show_default="cuda where there is a GPU, else cpu", help="What runs it.")]
EXAMPLES = (
    f"{PROGRAM} trace tree-lstm --batch-size 16 --steps 3 -o step.json",
    f"{PROGRAM} trace tree-lstm --vps 1 --inference",
    f"{PROGRAM} trace my_model:batches --json | jq .shares",
)


def trace(
    asked: Asked,
    steps: Annotated[int, typer.Option(min=1, help="Batches to record.")] = 3,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", dir_okay=False, help="Write the launches to this file, for ui.perfetto.dev."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", dir_okay=False, help="Write the summary to this file, as a page.")
    ] = None,
) -> str:
    """Run some batches, and say where the time of their launches went: shares, critical path, cells, what would help.

    Recorded is what every virtual processor executes, with start and end; two batches come before, unrecorded.
    """
    for path in filter(None, (output, html)):
        checked(path)
    batches = asked.batches
    target = chosen_target(asked.target, None)
    found = recorded(batches, steps, target, asked.vps, asked.policy, asked.schedule, asked.train)
    text = written(found.summary(), asked.as_json)
    if output is not None:
        found.write_perfetto(output)
        text += "" if asked.as_json else f"\n{output}: open it in ui.perfetto.dev\n"
    if html is not None:
        settings = f", {batches.settings}" if batches.settings else ""
        found.write_html(html, f"{batches.name}, batches of {asked.batch_size}{settings}")
        text += "" if asked.as_json else f"\n{html}: open it in a browser\n"
    return text


def recorded(
    workload: Workload,
    steps: int,
    target: str = CPU.name,
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
