"""python -m tests.distributed.on_gpus SHARDS HOW: trains on simulated GPUs, one per rank of a launcher.

HOW: "own", or "same" for one GPU shared by all. Under torchrun, gloo replaces NCCL. Every rank prints a line with its
trained weights and the number of messages that NCCL would have carried.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import vpps
import vpps.distributed
from tests.classifier import Classifier, new
from tests.runtime import fake_cuda
from tests.runtime.fake_cuda import DeviceArray

STEPS = 7
FROM_GPU = (0, 3, 5, 6)
"""Steps whose gradients all stay on GPUs. Step 1 accumulates in host memory, and step 4 has a shard without gradients.
Those of step 5 are not finite."""


def shard_of(net: Classifier, step: int, number: int) -> tuple[vpps.Graph, vpps.Expression]:
    """Return the graph of a shard, with its loss."""
    if step == 4 and number == 1:
        graph = vpps.Graph()
        return graph, vpps.sum(graph.input(np.zeros(2)))
    graph, loss = net.batch(10 * step + number, sentences=2)
    return graph, loss * 1e30 if step == 5 and number == 0 else loss


def let_gloo_carry(patch: pytest.MonkeyPatch) -> list[Any]:
    """Give PyTorch simulated GPUs and a simulated NCCL. Returns the list that records NCCL's messages."""
    import torch
    import torch.distributed as dist

    carried: list[Any] = []
    new_group, start = dist.new_group, dist.batch_isend_irecv

    def tensor(array: DeviceArray) -> Any:
        assert isinstance(array, DeviceArray)
        return torch.from_numpy(array.view(np.ndarray))

    def carry(messages: list[Any]) -> list[Any]:
        carried.extend(messages)
        for work in start(messages):
            work.wait()
        return [SimpleNamespace(is_completed=lambda: True, wait=lambda: None)]  # gloo's requests never report the end

    @contextmanager
    def current(stream: Any) -> Iterator[None]:
        stream.synchronize()  # gloo reads memory immediately
        yield

    patch.setattr(torch.cuda, "is_available", lambda: True)
    patch.setattr(torch.cuda, "ExternalStream", lambda ptr, device: sys.modules["cupy"].cuda.ExternalStream(ptr))
    patch.setattr(torch.cuda, "stream", current)
    patch.setattr(torch, "from_dlpack", tensor)
    patch.setattr(dist, "is_nccl_available", lambda: True)
    patch.setattr(dist, "new_group", lambda ranks, **how: new_group(ranks, **{**how, "backend": "gloo"}))
    patch.setattr(dist, "batch_isend_irecv", carry)
    return carried


def main(shards: int, how: str) -> None:
    """Train, and print the results."""
    patch, torch_rank = pytest.MonkeyPatch(), os.environ.get("RANK")
    carried = [] if torch_rank is None else let_gloo_carry(patch)
    gpu = fake_cuda.install_with_kernels(patch)
    if how == "own":
        gpu.uuid = bytes([int(torch_rank or os.environ.get("PMI_RANK", 0))]) * 16
    with vpps.distributed.init(shards=shards, timeout=60) as world:
        net, losses = new(), []
        options: dict[str, Any] = {"vps": 3, "clip_norm": 1.0, "on_nonfinite": "skip", "verify": how == "own"}
        with vpps.Handle(net.model, vpps.Adam(lr=0.01), target="cuda", world=world, **options) as handle:
            for step in range(STEPS):
                for number in world.mine:
                    handle.fb(*shard_of(net, step, number), accumulate=step == 1)
                losses.append(handle.sync_get_latest_loss())
            assert handle.skipped == 1
        weights = hashlib.sha256(b"".join(w.tobytes() for w in net.model.numpy().values())).hexdigest()
        for told in world.gather({"weights": weights, "losses": losses, "carried": len(carried)}):
            if world.is_first:
                print(json.dumps(told))
    assert gpu.findings == []


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
