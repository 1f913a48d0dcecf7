"""The data, settings and scores of the networks of vpps.zoo: what `vpps-train NAME` trains, by name."""

from typing import Any

from vpps.zoo.task import Task
from vpps.zoo.tasks.sentiment import (
    ChildSumTreeLSTMTask,
    MVRNNTask,
    RvNNTask,
    TreeGRUTask,
    TreeLSTMTask,
    TwoTypeTreeLSTMTask,
)

TASKS: dict[str, type[Task[Any]]] = {
    task.name: task
    for task in (TreeLSTMTask, ChildSumTreeLSTMTask, TwoTypeTreeLSTMTask, TreeGRUTask, RvNNTask, MVRNNTask)
}
TASKS: dict[str, type[Task[Any]]] = {task.name: task for task in (TreeLSTMTask, ChildSumTreeLSTMTask)}
from vpps.zoo.tasks.pyramids import TDLSTMTask, TDRNNTask
from vpps.zoo.tasks.sentiment import TreeLSTMTask

TASKS: dict[str, type[Task[Any]]] = {task.name: task for task in (TreeLSTMTask, TDRNNTask, TDLSTMTask)}
from vpps.zoo.tasks.sentiment import ChildSumTreeLSTMTask, TreeLSTMTask
from vpps.zoo.tasks.tagging import BiLSTMTaggerTask

TASKS: dict[str, type[Task[Any]]] = {task.name: task for task in (TreeLSTMTask, ChildSumTreeLSTMTask, BiLSTMTaggerTask)}
