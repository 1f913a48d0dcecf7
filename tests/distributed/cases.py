"""Training runs in a world: the program that each rank executes, and a single process for comparison.

    mpiexec -n 3 python -m tests.distributed.cases RESULTS SHARDS [halves | zoo]

All ranks must have bit-identical state; rank 0 writes the losses and states of all cases to a file. With `halves`,
every second rank is in a second world; each world writes its own file: RESULTS0 and RESULTS1. With `zoo`, the cases are
networks from the zoo.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

import vpps
import vpps.distributed
from tests.fuzz.histories import state
from tests.zoo.cases import CASES as CASES_OF_ZOO
from tests.zoo.cases import Case as CaseOfZoo
from vpps.distributed import World

STEPS, EXAMPLES, WIDTH, WORDS, STEPS_OF_ZOO = 4, 12, 7, 9, 3
WIDE, STACKED = 64, ("S0", "S1", "S2")
"""Panel width of every target, so that matrices of this width are stacked."""

SHARDS = 12
"""A number that 1, 2, 3 and 4 divide."""

Results = dict[str, dict[str, NDArray[Any]]]


@dataclass(frozen=True)
class Case:
    """A training run.

    Attributes:
        optimizer: makes the optimizer.
        handle: options of the handle.
        loss: returns one example's loss, given model, graph, step and number; None skips the example.
        accumulate: True to update at every second call only.
        apply: True to compute and apply gradients in two calls.
        resumes: True if a new model runs the second half, from a checkpoint.
        frozen: parameters that are not trained.
        by_rank: True if bits depend on the number of ranks.
        by_shard: True if the number of shards changes results by more than float32 rounding.
    """

    optimizer: Callable[[], vpps.Optimizer] = lambda: vpps.SGD(0.1)
    handle: Mapping[str, Any] = field(default_factory=dict)
    loss: Callable[[vpps.Model, vpps.Graph, int, int], vpps.Expression | None] = lambda *given: words(*given)
    accumulate: bool = False
    apply: bool = False
    resumes: bool = False
    frozen: tuple[str, ...] = ()
    by_rank: bool = False
    by_shard: bool = False


def words(model: vpps.Model, graph: vpps.Graph, step: int, k: int) -> vpps.Expression:
    """Return examples with one to five words."""
    h = graph.zeros(WIDTH)
    random = np.random.default_rng((step, k))
    for word in random.integers(0, WORDS, 1 + k % 5):
        h = vpps.tanh(model["W"] @ h + graph.lookup(model["E"], int(word)) + model["b"])
    return vpps.cross_entropy(h, k % WIDTH)


def some_without_words(model: vpps.Model, graph: vpps.Graph, step: int, k: int) -> vpps.Expression:
    """Return examples; the first half use no table, but an additional matrix."""
    if k >= EXAMPLES // 2:
        return words(model, graph, step, k)
    return vpps.cross_entropy(model["V"] @ graph.input(np.cos(np.arange(WIDTH) + k)), k % WIDTH)


def some_constant(model: vpps.Model, graph: vpps.Graph, step: int, k: int) -> vpps.Expression:
    """Return examples, the first of which depend on no parameter."""
    if k >= EXAMPLES // 3:
        return words(model, graph, step, k)
    return vpps.sum(graph.input(np.full(WIDTH, 0.25)))


def few(model: vpps.Model, graph: vpps.Graph, step: int, k: int) -> vpps.Expression | None:
    """Return all examples of the first batch, and fewer of later batches."""
    return None if step and k >= 3 else words(model, graph, step, k)


def dropping(model: vpps.Model, graph: vpps.Graph, step: int, k: int) -> vpps.Expression:
    """Apply a mask to every example."""
    h = vpps.dropout(graph.lookup(model["E"], k % WORDS), 0.5)
    return vpps.cross_entropy(model["W"] @ h, k % WIDTH)


def told(model: vpps.Model, graph: vpps.Graph, step: int, k: int) -> vpps.Expression:
    """Apply a mask that depends on the example, after other masks on part of it."""
    with graph.example(k):
        first = words(model, graph, step, k)
        return vpps.sum([first, *(dropping(model, graph, step, k) for _ in range(1 + k % 3))])


def told_of_two_cells(model: vpps.Model, graph: vpps.Graph, step: int, k: int) -> vpps.Expression:
    """Compute the gradients twice, with the same masks."""
    return told(model, graph, step, k) + two_cells(model, graph, step, k)


def infinite(model: vpps.Model, graph: vpps.Graph, step: int, k: int) -> vpps.Expression:
    """Make the last example's loss infinite in the second step, and its gradient in the third."""
    loss = words(model, graph, step, k)
    if (step, k) == (2, EXAMPLES - 1):
        return loss + vpps.sum(graph.input(np.full(WIDTH, 1e30)) * model["b"])
    return loss + graph.input(np.float32("inf")) if (step, k) == (1, EXAMPLES - 1) else loss


def two_tables(model: vpps.Model, graph: vpps.Graph, step: int, k: int) -> vpps.Expression:
    """Use tables of different widths, one of them only in some examples."""
    loss = words(model, graph, step, k)
    return loss if k % 3 else loss + vpps.sum(vpps.tanh(graph.lookup(model["F"], (step + k) % 4)))


def two_cells(model: vpps.Model, graph: vpps.Graph, step: int, k: int) -> vpps.Expression:
    """Both cells determine which matrices are stacked. Ranks see the cells in different orders, or see only one."""

    @vpps.cell
    def first(x: vpps.Expression) -> vpps.Expression:
        return vpps.tanh(model["S0"] @ x) * vpps.sigmoid(model["S1"] @ x)

    @vpps.cell
    def second(x: vpps.Expression) -> vpps.Expression:
        return vpps.tanh(model["S2"] @ x) + vpps.sigmoid(model["S0"] @ x)

    h = graph.input(np.cos(np.arange(WIDE) * (k + 1)).astype(np.float32))
    for _ in range(3):
        h = first(h) if k < EXAMPLES // 2 else second(h)
    return vpps.sum(h * h)


CASES = {
    "sgd": Case(),
    "momentum": Case(lambda: vpps.Momentum(0.05, weight_decay=0.01)),
    "adam": Case(lambda: vpps.Adam(0.01, weight_decay=0.01)),
    "clipping": Case(handle={"clip_norm": 0.5}),
    "cells of some": Case(handle={"clip_norm": 0.5}, loss=two_cells),
    "averages": Case(lambda: vpps.Momentum(0.05), {"ema": 0.8}),
    "accumulation": Case(lambda: vpps.Momentum(0.05), accumulate=True),
    "apply": Case(lambda: vpps.Momentum(0.05), {"clip_norm": 2.0}, apply=True, by_rank=True),
    "without table": Case(loss=some_without_words),
    "two tables": Case(loss=two_tables),
    "no gradient": Case(loss=some_constant),
    "few": Case(lambda: vpps.Momentum(0.05), loss=few),
    "dropout": Case(loss=dropping, by_shard=True),
    "dropout of examples": Case(loss=told),
    "dropout beside cells of some": Case(loss=told_of_two_cells),
    "accumulated dropout of examples": Case(loss=told, accumulate=True),
    "frozen": Case(frozen=("W", "E")),
    "bf16": Case(lambda: vpps.Adam(0.01), {"precision": {"*": "bf16", "V": "float32"}, "ema": 0.8}, by_shard=True),
    "infinite": Case(lambda: vpps.Momentum(0.05), loss=infinite),
    "raises": Case(handle={"on_nonfinite": "raise"}, loss=infinite),
    "resumed": Case(lambda: vpps.Adam(0.01), {"ema": 0.8}, resumes=True),
}


def new_model() -> vpps.Model:
    model = vpps.Model(seed=5)
    for name in "WV":
        model.parameter(name, (WIDTH, WIDTH))
    for name in STACKED:
        model.parameter(name, (WIDE, WIDE))
    model.parameter("b", (WIDTH,), init="normal")
    model.lookup("E", (WORDS, WIDTH), init="normal")
    model.lookup("F", (4, WIDTH - 2), init="normal")
    return model


def train(case: Case, world: World) -> dict[str, NDArray[Any]]:
    """Return the losses of the steps, and the final state."""
    model, losses = new_model(), list[float]()
    for name in case.frozen:
        model[name].trainable = False
    for steps in (range(STEPS // 2), range(STEPS // 2, STEPS)) if case.resumes else (range(STEPS),):
        if steps.start:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(world.gather(folder)[0]) / "checkpoint"
                if world.is_first:
                    model.save(path)
                world.barrier()
                model = vpps.Model.load(path)
                world.barrier()
        losses += run(case, world, model, steps)
    return {"losses": np.array(losses), **state(model), "step": np.array(model.step)}


def run(case: Case, world: World, model: vpps.Model, steps: range) -> list[float]:
    """Return the losses of some steps; -1 if a step raised an error about a non-finite value."""
    losses = []
    with vpps.Handle(model, case.optimizer(), target="cpu", vps=2, world=world, **case.handle) as handle:
        for step in steps:
            try:
                losses.append(make_step(case, handle, world, step))
            except vpps.NonFiniteError:
                losses.append(-1.0)
    return losses


def make_step(case: Case, handle: vpps.Handle, world: World, step: int) -> float:
    """Make a step and return its loss."""
    accumulate, gradients, total = case.accumulate and step % 2 == 0, [], 0.0
    for shard in world.mine:
        graph, numbers = vpps.Graph(), range(shard * EXAMPLES // world.shards, (shard + 1) * EXAMPLES // world.shards)
        losses = [loss for k in numbers if (loss := case.loss(handle.model, graph, step, k)) is not None]
        loss = vpps.sum(losses) if losses else graph.input(np.float32(0))
        if case.apply:
            value, found = handle.gradients(graph, loss, train=True)
            gradients.append(found)
            total += value
        else:
            handle.fb(graph, loss, accumulate=accumulate)
    if not case.apply:
        return handle.sync_get_latest_loss()
    handle.apply({name: sum(found[name] for found in gradients) for name in gradients[0]})
    return sum(world.gather(total))


def trained_by_zoo(case: CaseOfZoo, world: World) -> dict[str, NDArray[Any]]:
    """Return the losses of three steps of a zoo network, and the final weights. Dropout applies to tanh's results, in
    cells of maps and of rows."""
    size, losses, tanh = 4, list[float](), vpps.tanh
    task = case.make(limit=STEPS_OF_ZOO * size)
    with (
        mock.patch.object(vpps, "tanh", lambda x: vpps.dropout(tanh(x), 0.3)),
        vpps.Handle(task.model, vpps.Momentum(0.05), target="cpu", vps=1, world=world) as handle,
    ):
        for batch in task.train.batches(size, seed=1, epoch=0, world=world):
            graph = vpps.Graph()
            handle.fb(graph, task.loss(graph, batch) * (1 / batch.whole))
            losses.append(handle.sync_get_latest_loss())
    return {"losses": np.array(losses[len(world.mine) - 1 :: len(world.mine)]), **task.model.numpy()}


def results(world: World, zoo: bool = False) -> Results:
    """Return the results of all cases, or of the zoo's networks. Raises AssertionError if ranks differ."""
    found: Results = {}
    for name in CASES_OF_ZOO if zoo else CASES:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the loss of step [23] is")
            found[name] = trained_by_zoo(CASES_OF_ZOO[name], world) if zoo else train(CASES[name], world)
        assert len(set(world.gather(pickle.dumps(found[name])))) == 1, f"ranks differ after {name!r}"
    return found


def half() -> tuple[Any, int]:
    """Return every other rank as an MPI or PyTorch group, and the half's number."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        import mpi4py

        mpi4py.rc.thread_level = "funneled"  # then steps do not overlap with the program
        from mpi4py import MPI

        which = MPI.COMM_WORLD.rank % 2
        return MPI.COMM_WORLD.Split(which), which
    import torch.distributed as dist

    dist.init_process_group("gloo")
    halves = [dist.new_group(list(range(which, dist.get_world_size(), 2))) for which in range(2)]
    return halves[dist.get_rank() % 2], dist.get_rank() % 2


def main(path: str, shards: int, how: str = "") -> None:
    backend, which = half() if how == "halves" else (None, "")
    with vpps.distributed.init(backend, shards=shards) as world:
        cores = {frozenset(os.sched_getaffinity(int(thread))) for thread in os.listdir("/proc/self/task")}
        assert len(cores) == 1, "threads of the transport run where others do"
        assert world.gather("a" * world.rank) == ["a" * rank for rank in range(world.size)]
        found = results(world, how == "zoo")
        if world.is_first:
            Path(f"{path}{which}").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
