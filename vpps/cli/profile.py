"""`vpps-profile WORKLOAD`: finds the fastest configuration for a model on this machine and stores it for handles.

Candidates take turns on the same batches, so that noise on the machine affects all of them equally.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

import vpps
from vpps.cli.console import Version, app_named, exit_codes, plain_console
from vpps.cli.inspected import BatchSize, Precision, Target, WorkloadName, chosen_target, examples
from vpps.cli.options import AUTO_TARGET, precisions_in
from vpps.cli.streams import run_program
from vpps.cli.workload import REST, Workload, load_workload
from vpps.errors import HandleError, VppsError
from vpps.graph.graph import Graph
from vpps.ops.operand import Expression
from vpps.ops.precision import EXACT
from vpps.text import table
from vpps.tuning.candidates import GAIN, Candidate, candidates_for
from vpps.tuning.choices import Choice, Key, choices_file, keep, key_for

PROGRAM = "vpps-profile"

app = app_named(PROGRAM)

Inference = Annotated[bool, typer.Option("--inference", help="Tune the evaluation of the loss instead of training.")]
Batches = Annotated[int, typer.Option(min=1, help="Batches timed per turn.")]
Rounds = Annotated[int, typer.Option(min=1, help="Turns per candidate.")]
Store = Annotated[bool, typer.Option("--store/--no-store", help="Store the winner for handles.")]


@dataclass(slots=True)
class Measured:
    """Measured times of a candidate.

    Attributes:
        times: seconds per batch, a row per turn.
        reason: error from a candidate that does not run, or "".
    """

    candidate: Candidate
    times: list[list[float]] = field(default_factory=list)
    reason: str = ""

    @property
    def seconds(self) -> float:
        """The median over batches and turns; infinite if the candidate does not run."""
        return float("inf") if self.reason else float(np.median(self.times))

    def ratio(self, default: Measured) -> float:
        """Return the speedup over the default, 0 if the candidate does not run.

        It is the median ratio of the two times for one batch in one turn.
        """
        return 0.0 if self.reason else float(np.median(np.divide(default.times, self.times)))

    def is_faster_than(self, default: Measured) -> bool:
        """Return True if the candidate is faster by `GAIN`, and faster in three of four turns."""
        if self.reason or self.ratio(default) < GAIN:
            return False
        turns = np.median(np.divide(default.times, self.times), axis=1)
        return float(np.mean(turns > 1)) >= 0.75


@dataclass(frozen=True, slots=True)
class Bench:
    """Measures candidates on a workload.

    Attributes:
        workload: source of the batches; every turn trains its model from the same weights.
        options: options of the handle: target and precision.
        train: measure training steps; False measures only the loss's evaluation.
        batches: number of timed batches per turn.
        warmup: untimed batches per turn, in addition to the largest batch.
    """

    workload: Workload
    options: dict[str, Any]
    train: bool = True
    batches: int = 8
    warmup: int = 2

    def handle(self, candidate: Candidate) -> vpps.Handle:
        """Return a handle with the configuration of a candidate, without stored choices."""
        optimizer = self.workload.optimizer if self.train else None
        options: dict[str, Any] = {"schedule": "vector", **self.options, **candidate.changes}
        return vpps.Handle(self.workload.model, optimizer, train=self.train, verify=False, **options)

    def candidates(self) -> tuple[list[Candidate], Key]:
        """Return the candidates, default first, and the choice's key. Raises VppsError if the default fails."""
        with self.handle(Candidate()) as handle:
            self._run(handle, *self.workload.first(1)[0])
            handle.sync_get_latest_loss()
            engine = handle._engine
            precisions = engine.configuration.precision
            return candidates_for(engine), key_for(self.workload.model, engine.machine, self.train, precisions)

    def measure(self, found: Sequence[Candidate], rounds: int, told: Callable[[int, int], None]) -> list[Measured]:
        """Measure all candidates; each has one turn in every round.

        Args:
            told: callback after each turn; its arguments are the numbers of finished turns and of all turns.

        Raises:
            VppsError: the default, which is the first candidate, does not run.
        """
        model = self.workload.model
        largest = max(self.workload.first(self.batches), key=lambda batch: len(batch[0]))
        weights = model.numpy()
        all_of_them = [Measured(candidate) for candidate in found]
        for number in range(rounds):
            in_turn = all_of_them if number % 2 == 0 else all_of_them[::-1]  # alternate the order
            for k, measured in enumerate(in_turn, 1):
                if not measured.reason:
                    try:
                        measured.times.append(self._turn(measured.candidate, largest))
                    except VppsError as error:
                        if measured is all_of_them[0]:
                            raise
                        measured.reason = str(error)
                    for p in model:
                        p.assign(weights[p.name])
                told(number * len(found) + k, len(found) * rounds)
        return all_of_them

    def _turn(self, candidate: Candidate, largest: tuple[Graph, Expression]) -> list[float]:
        """Run all batches once; return the seconds of each."""
        times: list[float] = []
        with warnings.catch_warnings(), self.handle(candidate) as handle:
            warnings.simplefilter("ignore", RuntimeWarning)  # infinite losses do not matter: the weights are discarded
            for graph, loss in [largest, *islice(self.workload.batches(), self.warmup)]:
                self._run(handle, graph, loss)
            clock = time.perf_counter()
            for graph, loss in islice(self.workload.batches(), self.batches):
                self._run(handle, graph, loss)
                now = time.perf_counter()
                times.append(now - clock)
                clock = now
            handle.sync_get_latest_loss()
        return times

    def _run(self, handle: vpps.Handle, graph: Graph, loss: Expression) -> None:
        if self.train:
            handle.fb(graph, loss)  # returns after the previous launch, so times cover host and kernel
        else:
            handle.forward(graph, [loss])


def best_of(found: Sequence[Measured]) -> Measured:
    """Return the fastest candidate, or the first one if no other is clearly faster."""
    first = found[0]
    return max((m for m in found[1:] if m.is_faster_than(first)), key=lambda m: m.ratio(first), default=first)


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
    """Find the fastest configuration for a model on this machine and store it for handles.

    Candidates are timed on the same batches, in turns. On cpu they differ in the number of virtual processors. On a GPU
    they differ in groups of thread blocks, in vertices that a product computes at a time, and in rows per warp (rpw) of
    the published scheme. All compute the same results. From then on, every vpps.Handle of the same model on this device
    uses the winner; VPPS_TUNING=0 disables this.
    """
    with exit_codes(PROGRAM):
        loaded = load_workload(workload, batch_size, context.args)
        options = {"target": chosen_target(target, None), "precision": precisions_in(precision).written}
        bench = Bench(loaded, options, not inference, batches)
        with Console(stderr=True).status("compiling ...") as status:
            candidates, key = bench.candidates()
            found = bench.measure(candidates, rounds, lambda n, of: status.update(f"{n} of {of} turns done"))
        best = best_of(found)
        what = " ".join(filter(None, [loaded.name, loaded.settings]))
        purpose = "inference" if inference else "training"
        console = plain_console()
        console.print(f"{what}, batches of {batch_size}, {purpose} on {key.device}", soft_wrap=True)
        console.print("\n".join(_table(found, best)), soft_wrap=True)
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


def _table(found: Sequence[Measured], best: Measured) -> list[str]:
    """Return a table: the marked winner, the others by ratio, and last those that do not run."""
    default = found[0]
    rows = []
    for m in sorted(found, key=lambda m: (m is not best, -m.ratio(default))):
        times = ("-", "-") if m.reason else (f"{1e3 * m.seconds:.3f}", f"{m.ratio(default):.2f}")
        rows.append(("->" if m is best else "", m.candidate.describe(), *times))
    return table(("", "configuration", "ms/batch", "x default"), rows, (0, 1))


def main() -> None:
    """Run the program. Exit code: 0, 1 for an error, 2 for wrong usage, 130 after Ctrl-C, 141 if the reader is gone."""
    run_program(PROGRAM, app)
