"""The CUDA kernel's ops agree with their references, without races: weights in memory, both schedules."""

from __future__ import annotations

import numpy as np
import pytest

import vpps
from tests.ops import test_matrices, test_on_targets, test_rounded_products
from tests.ops.test_dropout import *  # noqa: F403
from tests.ops.test_lists import *  # noqa: F403
from tests.ops.test_matrices import *  # noqa: F403
from tests.ops.test_on_targets import *  # noqa: F403
from tests.ops.test_rounded_products import *  # noqa: F403
from tests.simt.conftest import with_default

pytestmark = [pytest.mark.simt, pytest.mark.usefixtures("in_memory")]


@pytest.fixture(autouse=True)
def fewer_virtual_processors_and_vertices(monkeypatch: pytest.MonkeyPatch) -> None:
    """37 vertices are more than one step of a gradient sum has."""
    check, formulas = test_matrices.check, test_matrices.FORMULAS
    monkeypatch.setattr(check, "__defaults__", with_default(check, "vp_counts", (3,)))
    monkeypatch.setattr(test_matrices, "MANY", (2, 13))
    fewer = {name: f._replace(n=[min(n, 37) for n in f.n]) for name, f in formulas.items()}
    monkeypatch.setattr(test_matrices, "FORMULAS", fewer)


@pytest.fixture(autouse=True)
def all_precisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """With weights in memory, 3xtf32 equals float32."""
    found = test_rounded_products.PRECISIONS | {"tf32": (1e-5, 2e-3), "3xtf32": (0, 1e-5)}
    monkeypatch.setattr(test_rounded_products, "PRECISIONS", found)


@pytest.mark.parametrize("shape, n", [((2,), 2_000), ((2, 3), 1_500)])
def test_weight_gradients_of_very_many_products_keep_their_digits(
    shape: tuple[int, ...], n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are fewer products than in other tests, because emulated products are slow."""
    test_on_targets.test_weight_gradients_of_very_many_products_keep_their_digits(shape, n, monkeypatch)


@pytest.mark.parametrize("width", [1, 100])
def test_sums_of_very_many_rows_keep_their_digits(width: int) -> None:
    model = vpps.Model(seed=1)
    graph = vpps.Graph()
    x = graph.input(np.full(width, 0.7, np.float32))
    total = vpps.sum([x for _ in range(20_000)])
    with vpps.Handle(model, vps=1) as handle:
        (value,) = handle.forward(graph, [total])
    assert np.allclose(value, 20_000 * float(np.float32(0.7)), rtol=2e-6)


@pytest.mark.parametrize("n", [17, 300, 4_500])
def test_a_sum_that_the_block_makes_has_the_bits_of_one_that_a_thread_makes(n: int) -> None:
    """Sums are in groups of 16 terms, then of 16 such sums, and so on. The number of parallel sums has no effect."""

    def in_order(x: np.ndarray) -> np.ndarray:
        return np.array([np.add.accumulate(x[k : k + 16])[-1] for k in range(0, len(x), 16)])

    terms = np.random.default_rng(n).normal(size=n).astype(np.float32)
    graph = vpps.Graph()
    xs = [graph.input(x) for x in terms.reshape(n, 1)]
    sums = [vpps.sum(xs) for _ in range(64 if n < 4_500 else 1)]
    with vpps.Handle(vpps.Model(seed=1), target="simt", vps=1, train=False) as handle:
        (alone,) = handle.forward(graph, sums[:1])
        values = handle.forward(graph, sums)
    assert alone == np.add.accumulate(in_order(in_order(terms)))[-1]
    assert {value.item() for value in values} == {alone.item()}
