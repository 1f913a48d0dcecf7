"""A cell's instruction groups equal those found by comparing all pairs."""

import random

import numpy as np
import pytest

import vpps
from vpps.compiler.barriers import _Access, _Earlier
from vpps.reference import Reference


@pytest.mark.parametrize("seed", range(20))
def test_conflicts_are_those_of_all_pairs(seed):
    draw = random.Random(seed)
    earlier, every = _Earlier(), []
    for group in range(60):
        lo = draw.randrange(200)
        access = _Access(
            draw.randrange(2), lo, lo + draw.choice((1, 1, 2, 7, 8, 64, 200)), draw.random() < 0.5, None, None
        )
        found = sorted(group for group, _ in earlier.conflicts(access))
        assert found == [k for k, other in enumerate(every) if access.conflicts(other)]
        earlier.add(access, group)
        every.append(access)


@pytest.mark.parametrize("join", [vpps.stack, vpps.concat])
def test_joining_many_pieces_compares_each_with_few(join, monkeypatch):
    compared = []
    monkeypatch.setattr(_Access, "conflicts", lambda a, b, was=_Access.conflicts: compared.append(0) or was(a, b))
    n, model = 600, vpps.Model(seed=1)
    b = model.parameter("b", (2,), init="normal")
    graph = vpps.Graph()
    joined = join([graph.input(np.array([k, 1], np.float32)) * b for k in range(n)])
    loss = vpps.sum(joined @ graph.input(np.ones(2, np.float32)) if join is vpps.stack else joined)
    with vpps.Handle(model, target="cpu") as handle:
        _, gradients = handle.gradients(graph, loss)
    assert len(compared) < 30 * n
    expected = Reference(graph, {"b": b.numpy()})
    expected.value(loss)
    np.testing.assert_allclose(gradients["b"], expected.backward(loss)["b"], rtol=1e-5)
