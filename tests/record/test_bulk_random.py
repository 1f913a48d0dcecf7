"""Random structures of random kinds: a map and single calls in the same order give the same bits."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import maps
from vpps.record.levels import find_cycle, find_levels, raise_levels


def examples(n: int) -> settings:
    """Return settings for n examples, the same in every run."""
    return settings(max_examples=n, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.mark.cpu
@pytest.mark.parametrize("part", range(6))
def test_random_maps_give_the_bits_of_calls_one_by_one(part: int) -> None:
    for number in range(20 * part, 20 * part + 20):
        maps.draw(Random(number)).check()


edges = st.integers(1, 60).flatmap(
    lambda n: st.tuples(
        st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=150), st.booleans()
    )
)


def plain_levels(n: int, parents: list[int], children: list[int], floor: list[int], step: int = 1) -> list[int]:
    levels = list(floor)
    for _ in range(n):
        for p, c in zip(parents, children, strict=True):
            levels[p] = max(levels[p], levels[c] + step)
    return levels


@pytest.mark.host
@examples(200)
@given(drawn=edges, narrow=st.sampled_from([1, 4, 32]), seed=st.integers(0, 99))
def test_levels_are_longest_distances(drawn: Any, narrow: int, seed: int) -> None:
    n, pairs, cyclic = drawn
    rng = np.random.default_rng(seed)
    name = rng.permutation(n)
    pairs = [(p, c) for p, c in pairs if cyclic or p > c]
    parents = np.array([name[p] for p, _ in pairs], np.int64)
    children = np.array([name[c] for _, c in pairs], np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vpps.record.levels.NARROW", narrow)
        levels = find_levels(n, parents, children)
        if levels.min() < 0:
            cycle = find_cycle(levels, parents, children)
            found = set(zip(parents.tolist(), children.tolist(), strict=True))
            assert all(pair in found for pair in zip(cycle, cycle[1:] + cycle[:1], strict=True))
            return
        assert levels.tolist() == plain_levels(n, parents.tolist(), children.tolist(), [0] * n)
        floor, step = rng.integers(0, 4, n), 1 + seed % 2
        order = np.argsort(parents, kind="stable")
        for given in (levels, 2 * levels + rng.integers(0, 2, n)):  # and some that are higher than necessary
            raised = raise_levels(given, floor, parents[order], children[order], step)
            assert raised.tolist() == plain_levels(n, parents.tolist(), children.tolist(), floor.tolist(), step)
