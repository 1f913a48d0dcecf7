"""python -m tests.runtime.bits GRAPHS: digests of trained weights, for all of the zoo's networks and random graphs.

`scripts/test_aarch64` compares two kinds of processors by these digests.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from itertools import islice
from random import Random

import numpy as np

import vpps
from tests.fuzz import graphs
from tests.zoo.cases import CASES


def trainings(n_graphs: int) -> Iterator[tuple[str, vpps.Model, list[tuple[vpps.Graph, vpps.Expression]]]]:
    """Yield a name, a model, and a graph with its loss for two steps."""
    for name, case in CASES.items():
        task, recorded = case.make(), [vpps.Graph(), vpps.Graph()]
        batches = islice(task.train.batches(8), 2)
        yield name, task.model, [(g, task.loss(g, batch)) for g, batch in zip(recorded, batches, strict=True)]
    for number in range(n_graphs):
        model, graph, _, loss = graphs.draw(Random(number)).build()
        yield f"random graph {number}", model, [(graph, loss)] * 2


def main() -> None:
    for number, (name, model, steps) in enumerate(trainings(int(sys.argv[1]))):
        # Without clipping, a gradient's last part is computed together with its step.
        clip_norm = 1.0 if number % 2 else None
        with vpps.Handle(model, vpps.Adam(lr=0.01), clip_norm=clip_norm, ema=0.9, target="cpu", vps=2) as handle:
            losses = []
            for graph, loss in steps:
                handle.fb(graph, loss)
                losses.append(handle.sync_get_latest_loss())
        values = [np.float32(losses), *(value for _, value in sorted(model.numpy().items()))]
        digest = hashlib.sha256(b"".join(np.where(np.isnan(v), np.float32("nan"), v).tobytes() for v in values))
        print(f"{name}: {digest.hexdigest()[:16]}", flush=True)


if __name__ == "__main__":
    main()
