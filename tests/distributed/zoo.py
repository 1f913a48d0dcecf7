"""Three steps of every network of the zoo, made by a world of two shards.

mpiexec -n 2 python -m tests.distributed.zoo RESULTS
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import vpps
import vpps.distributed
from tests.zoo.cases import CASES, Case
from vpps.distributed import World

STEPS, BATCH, SHARDS = 3, 4, 2


def trained(case: Case, world: World) -> dict[str, Any]:
    """Losses, and bytes of the weights afterwards."""
    task, losses = case.make(limit=STEPS * BATCH), []
    with vpps.Handle(task.model, vpps.Adam(), target="cpu", vps=1, world=world) as handle:
        for batch in task.train.batches(BATCH, seed=1, epoch=0, world=world):
            graph = vpps.Graph()
            handle.fb(graph, task.loss(graph, batch) * (1 / batch.whole))
            losses.append(handle.sync_get_latest_loss())
    return {"losses": losses, **{p.name: p.host.tobytes() for p in task.model}}


def results(world: World) -> dict[str, dict[str, Any]]:
    """Of all cases. Raises AssertionError: ranks differ."""
    found = {}
    for name, case in CASES.items():
        found[name] = trained(case, world)
        weights = {key: value for key, value in found[name].items() if key != "losses"}
        assert len(set(world.gather(pickle.dumps(weights)))) == 1, f"ranks differ after {name!r}"
        found[name]["losses"] = found[name]["losses"][len(world.mine) - 1 :: len(world.mine)]
    return found


if __name__ == "__main__":
    with vpps.distributed.init(shards=SHARDS) as world:
        made = results(world)
        if world.is_first:
            Path(sys.argv[1]).write_bytes(pickle.dumps(made))
