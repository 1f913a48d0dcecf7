"""python -m tests.distributed.on_gpus SHARDS HOW: trains on imaginary GPUs, one for every rank of mpiexec.

HOW: "nccl", or why there is none: "none" of the ranks has it, "same" GPU for all, "refused" by NCCL on rank 1. Every
rank prints a line: what it has learned, through what, and how many messages NCCL has carried.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any

import numpy as np
import pytest

import vpps
import vpps.distributed
from tests.classifier import Classifier, new
from tests.distributed import fake_nccl
from tests.runtime import fake_cuda

STEPS = 7
FROM_GPU = (0, 3, 5, 6)
"""Steps of which all gradients stay on GPUs: what is accumulated in step 1 does not, and in step 4 a shard has none.
Those of step 5 are not finite."""


def shard_of(net: Classifier, step: int, number: int) -> tuple[vpps.Graph, vpps.Expression]:
    """The graph of one, with its loss."""
    if step == 4 and number == 1:
        graph = vpps.Graph()
        return graph, vpps.sum(graph.input(np.zeros(2)))
    graph, loss = net.batch(10 * step + number, sentences=2)
    return graph, loss * 1e30 if step == 5 and number == 0 else loss


def main(shards: int, how: str) -> None:
    """Train, and say what came of it."""
    rank = int(os.environ.get("PMI_RANK", 0))
    gpu = fake_cuda.install_with_kernels(pytest.MonkeyPatch())
    if how != "same":
        gpu.uuid = bytes([rank]) * 16
    nccl = fake_nccl.install(gpu)
    if how == "none":
        sys.modules["nccl.core"] = None  # type: ignore[assignment]
    if how == "refused" and rank == 1:
        nccl.refuses = fake_nccl.Result.RemoteError
    with vpps.distributed.init(shards=shards, timeout=60) as world:
        net, losses = new(), []
        options: dict[str, Any] = {"vps": 3, "clip_norm": 1.0, "on_nonfinite": "skip", "verify": how == "nccl"}
        with vpps.Handle(net.model, vpps.Adam(lr=0.01), target="cuda", world=world, **options) as handle:
            for step in range(STEPS):
                for number in world.mine:
                    handle.fb(*shard_of(net, step, number), accumulate=step == 1)
                losses.append(handle.sync_get_latest_loss())
            assert handle.skipped == 1
        weights = hashlib.sha256(b"".join(w.tobytes() for w in net.model.numpy().values())).hexdigest()
        line = {"weights": weights, "losses": losses, "world": repr(world), "carried": len(nccl.carried)}
        for told in world.gather(line):
            if world.is_first:
                print(json.dumps(told))
    assert gpu.findings == []


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
