"""Checks that the DyNet programs compute the same as vpps: losses over updates, and outputs, on synthetic data.

    PYTHONPATH=. python bench/peers/dynet_zoo/check.py [--tasks NAME,...] [--hidden 24] [--set root_only=1 ...]

Prints a line per task and form (strategy, whole matrices or parts). Exits with status 1 if any differs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

import vpps
from peers.dynet_zoo import PROGRAMS
from peers.dynet_zoo.program import STRATEGIES, WHOLE_UP_TO
from vpps.zoo.tasks import TASKS

TOLERANCE = 1e-4
UPDATES = 3
LEARNING_RATE = 0.02
HELD_OUT = 5  # number of examples whose outputs are compared


def make_task(name: str, data: Path | None, settings: dict[str, Any]) -> Any:
    """Return a task, with the settings that apply to it."""
    kind = TASKS[name].settings_type
    known = {key: value for key, value in settings.items() if key in kind.__dataclass_fields__}
    return TASKS[name](kind(data=data, limit=40, seed=3, **known))


def worst_difference(name: str, task: Any, strategy: str, batch_size: int, optimizer: str = "sgd") -> float:
    """Return the largest relative difference of losses (each after an update, so gradients count) and of outputs."""
    program = PROGRAMS[name](task, batch_size, strategy)
    program.train_with(optimizer, LEARNING_RATE)
    rule = vpps.SGD(lr=LEARNING_RATE) if optimizer == "sgd" else vpps.Adam(lr=LEARNING_RATE)
    initial = task.model.numpy()
    worst = 0.0
    with vpps.Handle(task.model, target="cpu", vps=1, optimizer=rule) as handle:
        for k in range(UPDATES):
            batch = task.train[slice(k * batch_size, (k + 1) * batch_size)]
            graph = vpps.Graph()
            handle.fb(graph, task.loss(graph, batch) * (1 / len(batch)))
            expected = handle.sync_get_latest_loss()
            program.step(program.prepare(batch))
            worst = max(worst, abs(program.last_loss() - expected) / abs(expected))
        batch = task.train[:HELD_OUT]
        graph = vpps.Graph()
        (outputs,) = handle.forward(graph, [task.outputs(graph, batch)])
        own = program.infer(program.prepare(batch)).reshape(outputs.shape)
        worst = max(worst, float(np.abs(own - outputs).max() / np.abs(outputs).max()))
    for parameter in task.model:
        parameter.assign(initial[parameter.name])
    return worst


def main() -> None:
    """Compare every task that has a program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", help="tasks (default: all that have a DyNet program)")
    parser.add_argument("--data", type=Path, help="real data of the task")
    parser.add_argument("--hidden", type=int, default=24)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=INT", help="further settings")
    options = parser.parse_args()
    further = {name: int(value) for name, _, value in (word.partition("=") for word in options.set)}
    failed = False
    for name in options.tasks.split(",") if options.tasks else PROGRAMS:
        task = make_task(name, options.data, {"hidden": options.hidden, "embedding": 16} | further)
        for strategy in STRATEGIES:
            for batch_size in (WHOLE_UP_TO, 8):
                worst = worst_difference(name, task, strategy, batch_size)
                failed |= not worst <= TOLERANCE
                print(f"{name}, {strategy}, mini-batches of {batch_size}: {worst:.1e}", flush=True)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
