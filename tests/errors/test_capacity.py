"""If a pool is too small, the message gives the required size, and nothing is lost."""

from __future__ import annotations

import re

import numpy as np
import pytest

import vpps
from tests.classifier import new, same_bits

pytestmark = pytest.mark.cpu


def test_too_small_says_what_is_needed_and_what_is_allowed() -> None:
    net, witness = new(), new()
    large = net.batch(5, sentences=200)
    with vpps.Handle(net.model, pool_limit=64 * 1024) as handle, vpps.Handle(witness.model) as other:
        handle.fb(*net.batch(1))
        loss = handle.sync_get_latest_loss()
        with pytest.raises(vpps.CapacityError, match=r"MiB.*0\.1 MiB.*pool_limit=.*smaller batches"):
            handle.fb(*large)
        assert net.model.step == 1
        assert handle.fb(*net.batch(2)) == loss  # as if the large batch had never existed
        witness.train(other, range(1, 3))
        assert same_bits(net.model.numpy(), witness.model.numpy())


def test_what_the_message_asks_for_is_enough() -> None:
    net = new()
    large = net.batch(5, sentences=200)
    with vpps.Handle(net.model, pool_limit=4096) as handle, pytest.raises(vpps.CapacityError) as caught:
        handle.forward(large[0], [large[1]])
    with vpps.Handle(net.model, pool_limit=64 * 1024) as handle, pytest.raises(vpps.CapacityError) as caught:
        handle.fb(*large)
    needed = re.search(r"needs a pool of ([\d.]+) MiB", str(caught.value))
    assert needed
    limit = int((float(needed[1]) + 0.05) * 2**20)  # printed with one digit
    with vpps.Handle(net.model, pool_limit=limit) as handle:
        handle.fb(*large)
        assert handle.sync_get_latest_loss() > 0


def test_a_model_that_does_not_fit_says_so() -> None:
    model = vpps.Model()
    W = model.parameter("W", (512, 512))
    graph = vpps.Graph()
    loss = vpps.sum(W @ graph.input(np.ones(512)))
    with vpps.Handle(model, pool_limit=2**20) as handle:
        for _ in range(2):
            with pytest.raises(vpps.CapacityError, match=r"1\.0 MiB.*pool_limit="):
                handle.fb(graph, loss)
    assert model.step == 0


def test_a_parameter_that_no_longer_fits_loses_nothing() -> None:
    net, witness = new(), new()
    with vpps.Handle(net.model, pool_limit=2**20) as handle:
        net.train(handle, range(2))
        net.model.parameter("huge", (1024, 1024))
        with pytest.raises(vpps.CapacityError):
            handle.fb(*net.batch(2))
    with vpps.Handle(witness.model) as handle:
        witness.train(handle, range(2))
    weights = net.model.numpy()
    del weights["huge"]
    assert same_bits(weights, witness.model.numpy())


def test_grows_by_itself_and_keeps_weights_and_moments() -> None:
    growing, roomy = new(), new()
    sizes = (1, 2, 40, 3, 80, 300)
    with vpps.Handle(growing.model, vpps.Adam()) as handle, vpps.Handle(roomy.model, vpps.Adam()) as other:
        other.gradients(*roomy.batch(0, sentences=1000))
        for seed, n in enumerate(sizes):
            handle.fb(*growing.batch(seed, sentences=n))
            other.fb(*roomy.batch(seed, sentences=n))
    assert same_bits(growing.model.numpy(), roomy.model.numpy())
