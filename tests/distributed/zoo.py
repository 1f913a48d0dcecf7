"""Three steps of every network of the zoo, made by a world with a shard per rank.

mpiexec -n 3 python -m tests.distributed.zoo RESULTS SHARDS

Whatever comes out of a tanh is dropped at random, in cells of maps and of rows.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import vpps
import vpps.distributed
from tests.zoo.cases import CASES, Case
from vpps.distributed import World

STEPS, BATCH = 3, 4

State = dict[str, np.ndarray[Any, Any]]


def trained(case: Case, world: World) -> State:
    """Losses, and the weights afterwards."""
    task, losses = case.make(limit=STEPS * BATCH), list[float]()
    with vpps.Handle(task.model, vpps.Momentum(0.05), target="cpu", vps=1, world=world) as handle:
        for batch in task.train.batches(BATCH, seed=1, epoch=0, world=world):
            graph = vpps.Graph()
            handle.fb(graph, task.loss(graph, batch) * (1 / batch.whole))
            losses.append(handle.sync_get_latest_loss())
    return {"losses": np.array(losses[len(world.mine) - 1 :: len(world.mine)]), **task.model.numpy()}


def results(world: World) -> dict[str, State]:
    """Of all cases. Raises AssertionError: ranks differ."""
    found, tanh = {}, vpps.tanh
    for name, case in CASES.items():
        with mock.patch.object(vpps, "tanh", lambda x: vpps.dropout(tanh(x), 0.3)):
            found[name] = trained(case, world)
        assert len(set(world.gather(pickle.dumps(found[name])))) == 1, f"ranks differ after {name!r}"
    return found


if __name__ == "__main__":
    with vpps.distributed.init(shards=int(sys.argv[2])) as world:
        made = results(world)
        if world.is_first:
            Path(sys.argv[1]).write_bytes(pickle.dumps(made))
