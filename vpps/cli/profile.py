"""`vpps-profile WORKLOAD`: finds the fastest configuration for a model on this machine, and keeps it for handles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from vpps.cli.console import Version, app_named, exit_codes, plain_console, table_of
from vpps.cli.inspected import BatchSize, Precision, Target, WorkloadName, chosen_target, examples
from vpps.cli.measure import Bench, Measured, best_of
from vpps.cli.options import AUTO_TARGET, precisions_in
from vpps.cli.streams import run_program
from vpps.cli.workload import REST, load_workload
from vpps.errors import HandleError
from vpps.ops.precision import EXACT
from vpps.tuning.candidates import GAIN
from vpps.tuning.choices import Choice, choices_file, keep

PROGRAM = "vpps-profile"

app = app_named(PROGRAM)

Inference = Annotated[bool, typer.Option("--inference", help="Tune evaluation of the loss, not training.")]
Batches = Annotated[int, typer.Option(min=1, help="Batches timed per turn.")]
Rounds = Annotated[int, typer.Option(min=1, help="Turns of every candidate.")]
Store = Annotated[bool, typer.Option("--store/--no-store", help="Keep the winner for handles.")]


@app.command(
    context_settings=REST,
    **examples(
        f"{PROGRAM} tree-lstm --data trees --batch-size 16",
        f"{PROGRAM} tree-lstm --target cuda --precision bf16",
        f"{PROGRAM} my_module:build --inference --no-store",
    ),
)
def profile(
    context: typer.Context,
    workload: WorkloadName,
    batch_size: BatchSize = 16,
    target: Target = AUTO_TARGET,
    precision: Precision = EXACT.name,
    inference: Inference = False,
    batches: Batches = 8,
    rounds: Rounds = 5,
    store: Store = True,
    version: Version = False,
) -> None:
    """Find the fastest configuration for a model on this machine, and keep it for handles.

    Candidates are timed over the same batches, in turns. On cpu they differ in the number of virtual processors; on a
    GPU in groups of thread blocks, in vertices that a product computes at a time, and in rows per warp (rpw) of the
    published scheme. What is computed is the same. A vpps.Handle of the same model uses the winner on this device from
    then on; VPPS_TUNING=0 switches that off.
    """
    with exit_codes(PROGRAM):
        loaded = load_workload(workload, batch_size, context.args)
        options = {"target": chosen_target(target, None), "precision": precisions_in(precision).written}
        bench = Bench(loaded, options, not inference, batches)
        with Console(stderr=True).status("compiling ...") as status:
            candidates, key = bench.candidates()
            found = bench.measure(candidates, rounds, lambda n, of: status.update(f"turn {n} of {of} is over"))
        best = best_of(found)
        what = " ".join(filter(None, [loaded.name, loaded.settings]))
        purpose = "inference" if inference else "training"
        console = plain_console()
        console.print(f"{what}, batches of {batch_size}, {purpose} on {key.device}", soft_wrap=True)
        console.print(_table(found, best))
        for failed in (m for m in found if m.reason):
            console.print(f"{failed.candidate.describe()}: {failed.reason}", soft_wrap=True)
        gain = f"{best.ratio(found[0]):.2f}x the default" if best is not found[0] else f"nothing is {GAIN:.2f}x as fast"
        kept = None
        if store:
            try:
                kept = keep(key, Choice(best.candidate, best.ratio(found[0]), PROGRAM))
            except OSError as error:
                raise HandleError(f"{choices_file()} cannot be written ({error.strerror}): set VPPS_TUNING") from error
        where = "not kept" if kept is None else f"kept for handles of this model in {kept}"
        console.print(f"best: {best.candidate.describe()}, {gain}; {where}", soft_wrap=True)


def _table(found: Sequence[Measured], best: Measured) -> Table:
    """The winner, marked, then the others by ratio; those that do not run last."""
    default = found[0]
    rows = []
    for m in sorted(found, key=lambda m: (m is not best, -m.ratio(default))):
        times = ("-", "-") if m.reason else (f"{1e3 * m.seconds:.3f}", f"{m.ratio(default):.2f}")
        rows.append(("->" if m is best else "", m.candidate.describe(), *times))
    return table_of(("", "configuration", "ms/batch", "x default"), rows, left=("", "configuration"))


def main() -> None:
    """Entry point. Exit code 0, or 1 for an error, 2 for wrong usage, 130 after Ctrl-C, 141 where nobody reads on."""
    run_program(PROGRAM, app)
