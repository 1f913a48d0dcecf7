"""Random programs over signs."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from vpps.data import synthetic_programs
from vpps.data.synthetic_programs import SIGNS, Program, result_of

pytestmark = pytest.mark.host

CONSTANTS: Program = [("-1", []), ("0", []), ("1", [])]


@pytest.mark.parametrize(
    "call, result",
    [
        (("neg", [0]), 1), (("sub", [0, 2]), -1), (("sub", [2, 0]), 1), (("mul", [0, 0, 2]), 1),
        (("sum", [0, 0, 2, 1]), -1), (("max", [0, 1, 0]), 0), (("min", [2, 0, 1]), -1),
    ],
)  # fmt: skip
def test_functions(call: tuple[str, list[int]], result: int) -> None:
    assert result_of([*CONSTANTS, call]) == result


def test_results_are_used_again() -> None:
    assert result_of([*CONSTANTS, ("neg", [2]), ("mul", [3, 3]), ("sub", [3, 4])]) == -1


def test_labels_are_results_of_the_graphs() -> None:
    train, dev = synthetic_programs(200, 20)
    assert (len(train), len(dev)) == (200, 20)
    words = train.vocabularies["name"].words
    for k in range(len(train)):
        batch = train[k]
        offsets, indices = batch.children
        reads = [indices[a:b].tolist() for a, b in pairwise(offsets)]
        program = [(words[n], c) for n, c in zip(batch["name"], reads, strict=True)]
        assert SIGNS[batch["label"][0]] == result_of(program)
        assert batch.roots.tolist() == [batch.n_vertices - 1]
    counts = np.bincount(train[:]["label"])
    assert counts.min() > 0.15 * counts.sum()
    stat = train.stat()
    assert stat.max_readers > 2
    assert stat.fan_in.max > 3


def test_equal_seeds_give_equal_programs() -> None:
    first, second, other = (synthetic_programs(9, 9, seed=seed)[1][:]["name"].tolist() for seed in (3, 3, 4))
    assert first == second != other
