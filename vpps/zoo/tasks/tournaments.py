"""Complete binary trees: the benchmark of TensorFlow Fold and Cavs, on data that can be learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vpps.data import tournaments
from vpps.data.synthetic import PLAYS
from vpps.errors import DataError
from vpps.zoo.task import Settings, setting
from vpps.zoo.tasks.network import GraphLabelTask
from vpps.zoo.tasks.trees import PER_CHILD
from vpps.zoo.tree_fc import TreeFC

N_WORDS = 30
N_TRAIN, N_DEV = 8000, 400


@dataclass(frozen=True, kw_only=True)
class TreeFCSettings(Settings):
    """Sizes of Tree-FC and its trees."""

    hidden: int = setting(256, "Length of a word vector and of all states.", min=1, shapes_model=True)
    per_child: bool = setting(False, PER_CHILD, shapes_model=True)
    leaves: int = setting(16, "Of every tree: 2, 4, 8, ...; Cavs measures trees of 256.", min=2)


class TreeFCTask(GraphLabelTask):
    """Train Tree-FC (Looks et al. 2017), a layer on complete trees: who wins a knockout tournament?"""

    name = "tree-fc"
    settings_type = TreeFCSettings
    data_help: ClassVar[str] = "None: its trees are made, as in the papers that measure it."
    unit = "tree"

    network_type = TreeFC
    n_words, n_classes = N_WORDS, len(PLAYS)

    def load(self, settings: TreeFCSettings, state: Mapping[str, Any] | None) -> None:
        if settings.data is not None:
            raise DataError(f"tree-fc makes its own trees and reads none: leave out --data {settings.data}")
        self.train = tournaments(N_TRAIN, settings.leaves, n_words=N_WORDS, seed=1).subset(slice(settings.limit))
        self.dev = tournaments(N_DEV, settings.leaves, n_words=N_WORDS, seed=2)

    def state(self) -> dict[str, Any]:
        return {}
