"""Speed without a compiler: a wheel's kernel with unfused cells, compared with a kernel compiled here.

    python bench/no_compiler.py --batch-sizes 1,16,64 --hidden 128 >> no_compiler.jsonl

Runs all tasks of vpps.zoo on one virtual processor, training and inference; zig compiles a wheel's kernel for all
processors with its instruction set. `value` is seconds of a step without a compiler and `peer_value` with one, so
`ratio` is the remaining share of the speed.
"""

from __future__ import annotations

import platform
import tempfile
from pathlib import Path
from typing import Any

import harness
import numpy as np
from workload_tasks import TASKS, data_folder, data_of, make_task

import vpps
from vpps import installation
from vpps.kernel import prebuilt
from vpps.kernel.host_compiler import tile_of_machine

BATCHES = 3


def main() -> None:
    """Measure all tasks and print lines."""
    parser = harness.parser(
        __doc__, data=None, batch_sizes=[1, 16, 64], hidden=128, limit=256, rounds=10, workload=None
    )
    options = parser.parse_args()
    harness.confine(1)
    names = options.workload.split(",") if options.workload else list(TASKS)
    with tempfile.TemporaryDirectory() as wheel:
        machine = prebuilt.FOLDER, Path(wheel)
        installation.build(machine[1], kernels=True, target=f"{platform.machine()}-linux-gnu.2.17")
        for name in names:
            for size in options.batch_sizes:
                measure(name, size, options, machine)


def measure(name: str, size: int, options: Any, folders: tuple[Path, Path]) -> None:
    """Measure one task at one batch size."""
    steps: dict[str, dict[str, Any]] = {"train": {}, "infer": {}}
    handles = []
    for kind, folder in zip(("with", "without"), folders, strict=True):
        prebuilt.FOLDER = folder
        task = make_task(name, data_of(name, data_folder(options.data)), options.hidden, options.hidden, options.limit)
        n = len(task.train)
        batches = [task.train[np.arange(i, min(i + size, n))] for i in range(0, n, size)][:BATCHES]
        passes = vpps.Passes(fusion=kind == "with")
        handle = vpps.Handle(task.model, vpps.SGD(lr=1e-4), target="cpu", vps=1, passes=passes)
        handles.append(handle)

        def train(handle: Any = handle, task: Any = task, batches: Any = batches) -> None:
            for batch in batches:
                graph = vpps.Graph()
                loss = task.loss(graph, batch)
                handle.fb(graph, loss[0] if isinstance(loss, tuple) else loss)
            handle.sync_get_latest_loss()

        def infer(handle: Any = handle, task: Any = task, batches: Any = batches) -> None:
            for batch in batches:
                graph = vpps.Graph()
                handle.forward(graph, [task.outputs(graph, batch)])

        train(), infer()
        steps["train"][kind], steps["infer"][kind] = train, infer
    for mode, contenders in steps.items():
        seconds = harness.interleave(contenders, options.rounds)
        case = f"{name} batch={size} hidden={options.hidden} mode={mode}"
        more = {"isa": tile_of_machine().isa}
        peer = "vpps-compiler", seconds["with"]
        harness.report("no_compiler", case, seconds["without"], "s", peer, higher_is_better=False, **more)
    for handle in handles:
        handle.close()


if __name__ == "__main__":
    main()
