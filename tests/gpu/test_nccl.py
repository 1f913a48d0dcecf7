"""Sums of gradients in the memory of a GPU, and NCCL, as far as one GPU can tell."""

from __future__ import annotations

import numpy as np
import pytest

import vpps
import vpps.distributed
from tests.classifier import new, same_bits
from vpps.distributed.transports import Transport
from vpps.distributed.transports.nccl import NcclTransport, why_unusable
from vpps.engine.gradients import RowGradients
from vpps.runtime.cuda import CudaMachine

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


class Alone(Transport):
    """One rank."""

    name = "alone"
    rank, size = 0, 1

    def exchange(self, *arrays: object) -> None:
        raise AssertionError

    def abort(self, status: int) -> None:
        raise AssertionError

    def close(self) -> None:
        pass


def test_nccl_carries_what_a_rank_sends_to_itself() -> None:
    """In the stream of launches, between other work."""
    cupy = pytest.importorskip("cupy")
    if why := why_unusable():
        pytest.skip(why)
    transport, machine = NcclTransport(Alone()), CudaMachine()
    with machine.in_order:
        assert transport.connect(lambda given: [given], 60) == ""
        for n in (1, 1000, 1 << 20):
            sent, received = cupy.asarray(np.arange(n, dtype=np.float32)), cupy.zeros(n, np.float32)
            sent *= 3
            transport.carry([(0, sent)], [(0, received)], 60)
            received += 1
            assert np.array_equal(cupy.asnumpy(received), np.arange(n, dtype=np.float32) * 3 + 1)
    transport.close()
    machine.close()
