"""The data, settings and scores of the networks of vpps.zoo: what `vpps-train NAME` trains, by name."""

from typing import Any

from vpps.zoo.task import Task
from vpps.zoo.tasks.language import FixedLSTMTask, VarLSTMTask
from vpps.zoo.tasks.lattices import LatticeGRUTask, LatticeLSTMTask
from vpps.zoo.tasks.pyramids import TDLSTMTask, TDRNNTask
from vpps.zoo.tasks.sentiment import (
    ChildSumTreeLSTMTask,
    MVRNNTask,
    RvNNTask,
    TreeGRUTask,
    TreeLSTMTask,
    TwoTypeTreeLSTMTask,
)
from vpps.zoo.tasks.tagging import BiLSTMCharTaggerTask, BiLSTMTaggerTask
from vpps.zoo.tasks.tournaments import TreeFCTask
from vpps.zoo.tasks.translation import TranslationTask

_ALL: tuple[type[Task[Any]], ...] = (
    TreeLSTMTask,
    ChildSumTreeLSTMTask,
    TwoTypeTreeLSTMTask,
    TreeGRUTask,
    RvNNTask,
    MVRNNTask,
    TDRNNTask,
    TDLSTMTask,
    TreeFCTask,
    BiLSTMTaggerTask,
    BiLSTMCharTaggerTask,
    FixedLSTMTask,
    VarLSTMTask,
    TranslationTask,
    LatticeLSTMTask,
    LatticeGRUTask,
)

TASKS = {task.name: task for task in _ALL}
