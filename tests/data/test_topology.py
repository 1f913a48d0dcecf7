"""Levels of many graphs at once."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.graphs import PlainGraph, examples, plain_graphs
from vpps.data import GraphSet
from vpps.record import levels as topology
from vpps.record.levels import find_cycle, find_levels

pytestmark = pytest.mark.host


@pytest.mark.parametrize("narrow", [1, 3, 10**9], ids=["wide", "mixed", "loop"])
@examples
@given(graphs=st.lists(plain_graphs(None), min_size=1, max_size=12))
def test_level_is_the_longest_way_down(narrow: int, graphs: list[PlainGraph]) -> None:
    edges = []
    first = 0
    for g in graphs:
        edges += [(v + first, child + first) for v, some in enumerate(g.children) for child in some if child >= 0]
        first += len(g.children)
    parents, children = np.array(edges, np.int64).reshape(-1, 2).T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topology, "NARROW", narrow)
        levels = find_levels(first, parents, children)
    assert levels.tolist() == [g.level(v) for g in graphs for v in range(len(g.children))]


@pytest.mark.parametrize("narrow", [1, 10**9], ids=["wide", "loop"])
def test_whoever_depends_on_a_cycle_has_no_level(narrow: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "NARROW", narrow)
    parents, children = np.array([(1, 0), (2, 1), (3, 2), (2, 3), (4, 3), (6, 5)]).T  # 2 and 3 read each other
    levels = find_levels(7, parents, children)
    assert levels.tolist() == [0, 1, -1, -1, -1, 0, 1]
    assert sorted(find_cycle(levels, parents, children)) == [2, 3]


def test_long_chain_takes_linear_time() -> None:
    """100 000 levels of one vertex take about as long as a hundred parallel chains of a tenth of that length."""
    start = time.perf_counter()
    chain = GraphSet([100_000], (np.arange(100_000) - 1)[:, None])
    forest = GraphSet([10_000] * 10, np.tile(np.arange(10_000) - 1, 10)[:, None])
    assert time.perf_counter() - start < 10  # a quadratic algorithm takes minutes
    assert chain[0].levels.tolist() == list(range(100_000))
    assert forest[9].levels.tolist() == list(range(10_000))


def test_forest_on_a_chain_on_a_forest_changes_over_and_back() -> None:
    """Wide levels, then narrow ones, then wide again."""
    wide, long = 500, 300
    parents = [*([wide] * wide), *range(wide + 1, wide + long), *range(wide + long, wide + long + wide)]
    children = [*range(wide), *range(wide, wide + long - 1), *([wide + long - 1] * wide)]
    levels = find_levels(2 * wide + long, np.array(parents), np.array(children))
    assert levels.tolist() == [0] * wide + list(range(1, long + 1)) + [long + 1] * wide
