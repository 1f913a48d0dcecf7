"""Every `vpps-train` task, at a small size, for the tests in this folder. Variants are separate cases."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vpps
from vpps.reference import Reference, weights_of
from vpps.zoo.task import Task
from vpps.zoo.tasks import TASKS


@dataclass(frozen=True)
class Case:
    """A task and its settings.

    Attributes:
        task: name of the task.
        settings: sizes that no block of units divides, so that edges are tested.
        data: the folder with its real data in shared/data, or None.
    """

    task: str
    settings: dict[str, Any] = field(default_factory=dict)
    data: str | None = None

    def make(self, data: Path | None = None, limit: int | None = 40, seed: int = 3, **settings: Any) -> Task[Any]:
        """Return the task on real data, or on synthetic data if there is none."""
        kind = TASKS[self.task]
        return kind(kind.settings_type(data=data, limit=limit, seed=seed, **self.settings | settings))

    def make_full_size(self) -> Task[Any]:
        """Return the users' task, with the settings that change its kernel, on little synthetic data."""
        kind = TASKS[self.task]
        sizes = {field.name for field in fields(kind.settings_type) if type(field.default) is int}
        variant = {name: value for name, value in self.settings.items() if name not in sizes}
        return kind(kind.settings_type(limit=4, **variant))


TREE = {"hidden": 20, "embedding": 12}
TAGGER = {"hidden": 20, "embedding": 12, "mlp": 28}
LSTM = {"hidden": 20, "embedding": 12}

LATTICE = {"hidden": 20, "embedding": 12}

CASES = {
    "tree-lstm": Case("tree-lstm", TREE, "sst"),
    "tree-lstm at the root": Case("tree-lstm", {**TREE, "root_only": True}, "sst"),
    "tree-lstm-child-sum": Case("tree-lstm-child-sum", TREE, "sst"),
    "tree-lstm-child-sum at the root": Case("tree-lstm-child-sum", {**TREE, "root_only": True}, "sst"),
    "tree-lstm-2type": Case("tree-lstm-2type", {**TREE, "per_child": True}, "sst"),
    "tree-gru": Case("tree-gru", {**TREE, "per_child": True}, "sst"),
    "rvnn": Case("rvnn", {**TREE, "mlp": 9, "per_child": True}, "sst"),
    "rvnn at every node": Case("rvnn", {**TREE, "mlp": 9, "root_only": False}, "sst"),
    "mv-rnn": Case("mv-rnn", {"hidden": 9, "min_count": 20}, "sst"),
    "td-rnn": Case("td-rnn", {"hidden": 20, "mlp": 12}, "sst"),
    "tree-fc": Case("tree-fc", {"hidden": 20, "leaves": 8, "per_child": True}),
    "td-lstm": Case("td-lstm", {**TREE, "mlp": 13}, "sst"),
    "bilstm-tagger": Case("bilstm-tagger", TAGGER, "wikiner"),
    "bilstm-char-tagger": Case("bilstm-char-tagger", {**TAGGER, "characters": 9}, "wikiner"),
    "fixed-lstm": Case("fixed-lstm", {**LSTM, "steps": 9}, "ptb"),
    "var-lstm": Case("var-lstm", LSTM, "ptb"),
    "nmt": Case("nmt", LSTM, "iwslt15"),
    "nmt with attention": Case("nmt", {**LSTM, "attention": True}, "iwslt15"),
    "lattice-lstm": Case("lattice-lstm", LATTICE, "weibo"),
    "lattice-gru": Case("lattice-gru", LATTICE, "weibo"),
}

every_case = pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])


def values(model: vpps.Model, graph: vpps.Graph, *wanted: Any) -> list[NDArray[np.float64]]:
    """Return the float64 reference's results for expressions and for rows, which are stacked."""
    reference = Reference(graph, weights_of(model))

    def value(of: Any) -> NDArray[np.float64]:
        one = isinstance(of, vpps.Expression)
        return np.asarray(reference.value(of) if one else [reference.value(x) for x in of])

    return [value(of) for of in wanted]


def cross_entropy(logits: NDArray[np.float64], labels: Any) -> NDArray[np.float64]:
    """Return the cross entropy of each row, by its definition."""
    losses: NDArray[np.float64] = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(logits)), labels]
    return losses
