"""Mini-batches divided among processes: the same shards for any number of processes, and balanced work."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.graphs import examples
from tests.data.test_graphset import chains
from vpps.data import SpelledSentences, synthetic_sentences
from vpps.data.graphbatch import shards_of
from vpps.errors import DataError

pytestmark = pytest.mark.host

SIZES = [5, 1, 1, 9, 3, 3, 7, 2, 8, 1, 4, 6, 2]
works = st.lists(st.integers(1, 12), max_size=40)


class FakeWorld(NamedTuple):
    """A world with only the attributes that a set reads."""

    shards: int
    mine: range

    def count_batch(self) -> None: ...


def ranks(size: int, shards: int) -> list[FakeWorld]:
    each = shards // size
    return [FakeWorld(shards, range(rank * each, (rank + 1) * each)) for rank in range(size)]


def loads(work: Any, shard: Any, shards: int) -> list[int]:
    return [sum(w for w, k in zip(work, shard, strict=True) if k == own) for own in range(shards)]


class TestShards:
    @examples
    @given(work=st.lists(st.integers(1, 12), max_size=6), shards=st.integers(1, 3))
    def test_largest_is_within_a_third_of_the_least_possible(self, work: list[int], shards: int) -> None:
        best = min(max(loads(work, choice, shards)) for choice in product(range(shards), repeat=len(work)))
        found = max(loads(work, shards_of(np.array(work, np.int64), shards).tolist(), shards))
        assert 3 * shards * found <= (4 * shards - 1) * best

    @examples
    @given(work=works, shards=st.integers(1, 9))
    def test_none_is_empty_where_there_are_as_many_items(self, work: list[int], shards: int) -> None:
        found = shards_of(np.array(work, np.int64), shards)
        assert len(set(found.tolist())) == min(shards, len(work))

    def test_equal_items_go_round(self) -> None:
        assert shards_of(np.full(7, 5), 3).tolist() == [0, 1, 2, 0, 1, 2, 0]

    def test_longest_goes_first(self) -> None:
        assert shards_of(np.array([1, 2, 9, 2, 3]), 2).tolist() == [1, 1, 0, 1, 1]


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"bucket": 2}, {"drop_last": True, "epoch": 2}])
@pytest.mark.parametrize("shards, sizes", [(1, (1,)), (2, (1, 2)), (3, (1, 3)), (6, (1, 2, 3, 6))])
class TestBatches:
    def test_are_divided_alike_among_any_number_of_processes(
        self, shards: int, sizes: tuple[int, ...], options: dict[str, Any]
    ) -> None:
        graphs = chains(*SIZES)
        whole = list(graphs.batches(5, seed=3, **options))
        (alone,) = (
            [b.indices.tolist() for b in graphs.batches(5, seed=3, world=w, **options)] for w in ranks(1, shards)
        )
        assert len(alone) == len(whole) * shards
        for k, batch in enumerate(whole):
            parts, order = alone[k * shards : (k + 1) * shards], batch.indices.tolist()
            assert sorted(i for part in parts for i in part) == sorted(order)
            assert all(part == sorted(part, key=order.index) for part in parts)
            assert [bool(part) for part in parts] == [s < len(order) for s in range(shards)]
        for size in sizes:
            each = shards // size
            found = [list(graphs.batches(5, seed=3, world=w, **options)) for w in ranks(size, shards)]
            for k, batch in enumerate(whole):
                parts = [part for own in found for part in own[k * each : (k + 1) * each]]
                assert [part.indices.tolist() for part in parts] == alone[k * shards : (k + 1) * shards]
                assert {part.whole for part in parts} == {len(batch)}


def test_batch_that_is_no_part_is_whole() -> None:
    graphs = chains(*SIZES)
    assert [batch.whole for batch in graphs.batches(5)] == [5, 5, 3]
    assert graphs[[1, 2]].whole == 2


def test_reversed_part_is_of_the_same_whole() -> None:
    (part, _) = chains(2, 3, 4).batches(3, world=FakeWorld(2, range(2)))
    assert part.reversed.whole == part.whole == 3


def test_spelled_sentences_are_divided_as_their_sentences() -> None:
    data = SpelledSentences.of(synthetic_sentences()[0][:9], min_count=3)
    (world,) = ranks(1, 4)
    parts, plain = (list(some.batches(6, world=world)) for some in (data, data.sentences))
    assert [part.sentences.indices.tolist() for part in parts] == [part.indices.tolist() for part in plain]
    assert [part.whole for part in parts] == [6] * 4 + [3] * 4
    assert [len(part) for part in parts[4:]] == [1, 1, 1, 0]
    assert (len(parts[-1].spellings), parts[-1].spelling.tolist(), parts[-1].n_vertices) == (0, [], 0)


def test_what_is_no_world_is_named() -> None:
    with pytest.raises(DataError, match="world=4: expected what"):
        chains(2).batches(1, world=4)  # type: ignore[arg-type]
