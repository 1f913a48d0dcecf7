"""With more virtual processors than cores, results are correct and all sleeping threads are woken."""

from __future__ import annotations

import os

import numpy as np
import pytest

import vpps
from tests.classifier import new, same_bits
from tests.processes import run
from vpps.placement.distribution import FIRST_FREE
from vpps.runtime.cores import usable_cores
from vpps.runtime.cpu import CpuMachine
from vpps.script.encode import barrier, encode, plain
from vpps.script.instructions import HEADER_WORDS, MAGIC

pytestmark = pytest.mark.cpu

MANY = 4 * usable_cores() + 1


def barriers(vps: int, n: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """Return a script that has only n barriers."""
    header = plain([MAGIC, vps, 1, 0] + [HEADER_WORDS + vps] * vps)
    barriers = (barrier(target=vps * (k + 1)) for k in range(n))
    return np.concatenate([header, *barriers, plain(encode("end", 0, 0))])


@pytest.mark.parametrize("vps", [2, 3, MANY])
def test_many_short_launches_all_end(vps: int) -> None:
    """Sleeping threads are woken at a barrier and between launches."""
    machine = CpuMachine(vps)
    machine.reserve(FIRST_FREE, 0)
    scripts = [barriers(vps, n) for n in (0, 1, 2, 7)]
    for k in range(400):
        machine.launch(scripts[k % len(scripts)])
        assert machine.wait() is None
    machine.launch(barriers(vps, 500))
    assert machine.wait() is None
    assert machine.launches == 401
    machine.close()


def test_who_waits_long_is_woken() -> None:
    """All threads but one are idle for so long that they sleep."""
    model = vpps.Model(seed=1)
    W = model.parameter("W", (512, 512), init="orthogonal")
    graph = vpps.Graph()
    h = graph.input(np.full(512, 0.1))
    for _ in range(40):
        h = vpps.softmax(W @ h)  # one row: work for one virtual processor
    values = []
    for vps in (1, 16):
        with vpps.Handle(model, vps=vps, train=False, verify=False) as handle:
            values += [handle.forward(graph, [h])[0] for _ in range(5)]
    for value in values:
        assert np.array_equal(value, values[0])


@pytest.mark.parametrize("vps", [usable_cores() + 1, 16, 4 * usable_cores() + 1])
def test_results_do_not_depend_on_it(vps: int) -> None:
    net, witness = new(), new()
    with vpps.Handle(net.model, vpps.Adam(), vps=vps, clip_norm=1.0) as handle:
        losses = net.train(handle, range(6))
    with vpps.Handle(witness.model, vpps.Adam(), vps=1, clip_norm=1.0) as handle:
        assert witness.train(handle, range(6)) == losses
    assert same_bits(net.model.numpy(), witness.model.numpy())


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system pins no processes")
def test_on_one_core_too() -> None:
    run(
        """
        import os
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
        from tests.runtime import test_oversubscription as tests
        for vps in (2, 9):
            tests.test_many_short_launches_all_end(vps)
            tests.test_results_do_not_depend_on_it(vps)
        """
    )
