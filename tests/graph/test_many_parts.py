"""`concat` and `stack` of many expressions with the same shape need few programs, for any number of expressions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vpps
from vpps.graph import graph as module

pytestmark = [pytest.mark.cpu, pytest.mark.simt]


@pytest.mark.parametrize("target", ["cpu", "simt"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_results_are_those_of_one_vertex(shape: tuple[int, ...], target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits are equal for values, dropout masks, and gradients with two terms. Longer sums have a different order."""

    def computed(handle: vpps.Handle, n: int, form: Any, again: int) -> list[Any]:
        graph, random = vpps.Graph(), np.random.default_rng(n)
        xs = [graph.input(random.normal(size=shape), grad=True) for _ in range(n - again)]
        with graph.example(1):
            whole = vpps.dropout(form([*xs, *xs[:again]]), 0.3)
        loss = vpps.sum(whole * graph.input(random.normal(size=whole.shape)))
        loss = loss + vpps.sum([vpps.sum(vpps.tanh(x)) for x in xs[::3]])
        handle.gradients(graph, loss, train=True)
        return [handle.value(whole), *map(handle.input_gradient, xs)]

    with vpps.Handle(vpps.Model(seed=2), vpps.SGD(lr=0.1), target=target, vps=2) as handle:
        for n, form, again in ((33, vpps.concat, 0), (64, vpps.concat, 0), (97, vpps.concat, 40), (70, vpps.stack, 0)):
            found = []
            for wide in (8, 32, 1 << 20):
                monkeypatch.setattr(module, "WIDE", wide)
                found.append(computed(handle, n, vpps.concat if shape[1:] else form, again))
            for pieces in found[:2]:
                assert all(map(np.array_equal, pieces, found[2])) or again
                np.testing.assert_array_equal(pieces[0], found[2][0])
                for gradient, expected in zip(pieces, found[2], strict=True):
                    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-7)


def test_other_numbers_of_parts_take_few_programs() -> None:
    graph = vpps.Graph()
    x = graph.input(np.ones(3))
    for n in range(1000, 1100):
        assert vpps.concat([x] * n).shape == (3 * n,)
    assert sum(len(cell.kinds) for cell in graph.blocks) < 100 * module.WIDE
    vpps.concat([*[x] * 50, graph.input(1.0)])  # several shapes: unchanged
    assert len([*graph.blocks.values()][-1].cell.kinds) == 51
