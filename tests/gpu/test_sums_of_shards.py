"""Sums of gradients in a GPU's memory."""

from __future__ import annotations

import numpy as np
import pytest

import vpps
import vpps.distributed
from tests.classifier import new, same_bits
from vpps.engine.gradients import RowGradients

pytestmark = pytest.mark.gpu


def test_sums_of_shards_have_the_bits_of_sums_on_the_host() -> None:
    shared, witness = new(), new()
    batches = [shared.batch(seed) for seed in range(8)]
    world = vpps.distributed.init("alone", shards=2)
    with vpps.Handle(shared.model, vpps.Adam(lr=0.01), clip_norm=1.0, world=world) as handle:
        for batch in batches:
            handle.fb(*batch)
    with vpps.Handle(witness.model, vpps.Adam(lr=0.01), clip_norm=1.0) as handle:
        for seed in range(0, 8, 2):
            first, second = (handle.gradients(*witness.batch(k), sparse=True)[1] for k in (seed, seed + 1))
            total = {}
            for name, a in first.items():
                b = second[name]
                if isinstance(a, RowGradients) and isinstance(b, RowGradients):
                    total[name] = RowGradients(np.concatenate([a.rows, b.rows]), np.concatenate([a.values, b.values]))
                else:
                    total[name] = a + b
            handle.apply(total)
    assert same_bits(shared.model.numpy(), witness.model.numpy())
