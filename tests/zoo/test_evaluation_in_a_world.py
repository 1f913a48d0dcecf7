"""Evaluating ranks share the batches, and all get the result of a single process."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import Any

import numpy as np
import pytest

import vpps
from tests.zoo.cases import CASES
from vpps.zoo import task as task_module
from vpps.zoo.task import in_turns


@dataclass
class Rank:
    """A world's rank in a separate thread."""

    rank: int
    size: int
    given: list[bytes]
    all_here: Barrier

    def gather(self, found: Any) -> list[Any]:
        self.given[self.rank] = pickle.dumps(found)
        self.all_here.wait(60)
        gathered = [pickle.loads(each) for each in self.given]
        self.all_here.wait(60)
        return gathered


def on_all_ranks(size: int, compute: Callable[[Any], Any]) -> list[Any]:
    """Return each rank's result in its world."""
    given, all_here = [b""] * size, Barrier(size)
    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(compute, [Rank(rank, size, given, all_here) for rank in range(size)]))


@pytest.mark.host
@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("batches", [0, 1, 4, 7])
def test_all_get_all_in_order_and_each_is_computed_once(size: int, batches: int) -> None:
    computed: list[int] = []

    def compute(batch: int) -> int:
        computed.append(batch)
        return batch * batch

    found = on_all_ranks(size, lambda world: list(in_turns(compute, iter(range(batches)), world)))
    assert found == [[k * k for k in range(batches)]] * size
    assert sorted(computed) == list(range(batches))


@pytest.mark.cpu
@pytest.mark.parametrize("name", ["tree-lstm", "bilstm-char-tagger", "nmt"])
def test_results_and_scores_are_those_of_one_process(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "EVALUATION_BATCH", 7)
    monkeypatch.setattr("vpps.zoo.tasks.kinds.EVALUATION_BATCH", 7)
    monkeypatch.setattr("vpps.zoo.tasks.kinds.LONGEST", 5)

    def evaluated(world: Any) -> tuple[Any, ...]:
        task = CASES[name].make(limit=4)
        task.dev = task.dev.subset(slice(30))
        with vpps.Handle(task.model, train=False, vps=1) as handle:
            results = [(batch.offsets, values) for batch, values in task.results(handle, task.dev, world)]
            translations = task.translations(handle, world) if name == "nmt" else None
            return results, translations, task.scores(task.results(handle, task.dev, world))

    alone = evaluated(None)
    assert len(alone[0]) == 5
    for results, *others in on_all_ranks(3, evaluated):
        assert others == list(alone[1:])
        for (offsets, values), (expected_offsets, expected) in zip(results, alone[0], strict=True):
            assert np.array_equal(offsets, expected_offsets)
            assert np.array_equal(values, expected)
