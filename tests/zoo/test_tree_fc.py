"""Tree-FC: its equations, and what its task refuses. Gradients: `test_against_reference.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import vpps
from vpps.reference import Reference, weights_of
from vpps.zoo.tasks.tournaments import TreeFCSettings, TreeFCTask

pytestmark = pytest.mark.host


@pytest.mark.parametrize("per_child", [False, True])
def test_logits_are_those_of_a_layer_at_every_vertex(per_child: bool) -> None:
    task = TreeFCTask(TreeFCSettings(hidden=6, leaves=4, limit=2, per_child=per_child))
    graph = vpps.Graph()
    batch = task.train[:]
    logits = task.outputs(graph, batch)
    weights = weights_of(task.model)
    reference = Reference(graph, weights)
    names = ("composition/W_1", "composition/W_2") if per_child else ("composition/W",)
    W = np.hstack([weights[name] for name in names])
    for k in range(2):
        level = [weights["words"][word] for word in task.train[k]["word"][:4]]
        while len(level) > 1:
            pairs = [np.concatenate(level[i : i + 2]) for i in range(0, len(level), 2)]
            level = [np.tanh(W @ pair + weights["composition/b"]) for pair in pairs]
        expected = weights["output/W"] @ level[0] + weights["output/b"]
        np.testing.assert_allclose(reference.value(logits[k]), expected, rtol=1e-9)


def test_data_is_refused() -> None:
    with pytest.raises(
        vpps.VppsError, match=r"tree-fc makes its own trees and reads none: leave out --data trees\.txt"
    ):
        TreeFCTask(TreeFCSettings(data=Path("trees.txt")))


def test_a_number_of_leaves_that_is_no_power_of_two_is_refused() -> None:
    with pytest.raises(vpps.VppsError, match=r"2, 4, 8, \.\.\. leaves, not 12"):
        TreeFCTask(TreeFCSettings(leaves=12))


def test_dev_trees_are_others_than_training_trees() -> None:
    task = TreeFCTask(TreeFCSettings(hidden=6, leaves=8))
    train, dev = (graphs[:400]["word"] for graphs in (task.train, task.dev))
    assert (train != dev).any()
    assert task.units(task.train[:7]) == 7
