"""A CRF's loss, gradients and best paths equal those from enumerating all paths."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import vpps
from tests.comparison import assert_agrees_with_reference
from vpps.data import GraphSet
from vpps.nn import CRF
from vpps.reference import Reference, weights_of


@pytest.mark.cpu
@pytest.mark.parametrize("backward", [False, True])  # chains against the order of their vertices
@pytest.mark.parametrize("n_tags, sizes", [(3, (4, 1, 3)), (2, (1, 1)), (1, (2, 3)), (4, (3, 4, 2, 1))])
def test_it_computes_what_all_paths_give(n_tags: int, sizes: tuple[int, ...], backward: bool) -> None:
    children = np.concatenate([[*range(1, size), -1] if backward else range(-1, size - 1) for size in sizes])
    chains, rng = GraphSet(sizes, children[:, None])[:], np.random.default_rng(n_tags)
    model, graph = vpps.Model(seed=1), vpps.Graph()
    crf, tags = CRF(model, n_tags), rng.integers(n_tags, size=sum(sizes))
    crf.load({name: rng.normal(size=w.shape) for name, w in crf.state_dict().items()})
    weights = crf.state_dict() | {"emissions": rng.normal(size=(sum(sizes), n_tags)).astype(np.float32)}
    expected, best, slopes = 0.0, np.zeros_like(tags), {name: np.zeros(w.shape) for name, w in weights.items()}
    for start, end in itertools.pairwise(chains.offsets):
        vertices = np.arange(start, end)[:: -1 if backward else 1]
        paths = [*itertools.product(range(n_tags), repeat=len(vertices))]
        counts = {name: np.zeros((len(paths), *w.shape)) for name, w in weights.items()}  # uses of weights by a path
        for k, path in enumerate(paths):
            counts["start_transitions"][k, path[0]] = counts["end_transitions"][k, path[-1]] = 1
            counts["emissions"][k, vertices, path] = 1
            for pair in itertools.pairwise(path):
                counts["transitions"][k, *pair] += 1
        scores = sum(np.tensordot(counts[name], w.astype(np.float64), w.ndim) for name, w in weights.items())
        right, chances = paths.index(tuple(tags[vertices])), np.exp(scores) / np.exp(scores).sum()
        expected -= np.log(chances[right])
        best[vertices] = paths[chances.argmax()]
        for name, of_paths in counts.items():
            slopes[name] += np.tensordot(chances, of_paths, 1) - of_paths[right]
    emissions = graph.rows(weights["emissions"], grad=True)
    loss, reference = crf.loss(graph, chains, emissions, tags), Reference(graph, weights_of(model))
    assert_agrees_with_reference(model, graph, loss)
    np.testing.assert_allclose(reference.value(loss), expected, rtol=1e-10)
    found = reference.backward(loss) | {"crf/emissions": reference.gradient(emissions)}
    for name, slope in slopes.items():
        np.testing.assert_allclose(found[f"crf/{name}"], slope, atol=1e-10)
    np.testing.assert_array_equal(crf.decode(chains, weights["emissions"]), best)
