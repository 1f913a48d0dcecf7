"""The benches' tasks of vpps.zoo: on real data, with the sizes of the papers."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from vpps.zoo.task import Task
from vpps.zoo.tasks import TASKS

_ROOT = Path(__file__).resolve().parent.parent
SIZE = 256  # width of hidden states and embeddings, VPPS paper IV-E
SIZES = {
    "rvnn": 512,
    "td-rnn": 512,
    "mv-rnn": 64,  # a matrix per node and word: neither paper trains it; in ED-Batch, inference with 32 to 512
}
SETTINGS = {
    "mv-rnn": {"min_count": 20},  # otherwise the matrices of all words take 2 GB at 256, in every process
    "tree-fc": {"leaves": 256},  # Cavs paper 5.1
}
# Folders of the data sets; all other tasks are measured on their synthetic data.
DATA = {
    **dict.fromkeys(
        ("tree-lstm", "tree-lstm-child-sum", "tree-lstm-2type", "tree-gru", "rvnn", "mv-rnn", "td-rnn", "td-lstm"),
        "sst",
    ),
    **dict.fromkeys(("bilstm-tagger", "bilstm-char-tagger"), "wikiner"),
    **dict.fromkeys(("fixed-lstm", "var-lstm"), "ptb"),
    **dict.fromkeys(("lattice-lstm", "lattice-gru"), "weibo"),
    "nmt": "iwslt15",
}


def data_folder(asked: Path | None = None, synthetic: bool = False) -> Path | None:
    """Return the folder of all data sets: `asked`, $VPPS_DATA, or shared/data in the checkout or beside it.

    Returns None if synthetic data is requested, or (announced) if there is no other data.
    """
    if synthetic:
        return None
    folders = [asked, os.environ.get("VPPS_DATA"), _ROOT / "shared" / "data", _ROOT.parent / "shared" / "data"]
    found = next((Path(folder) for folder in folders if folder and Path(folder).is_dir()), None)
    if found is None:
        print("no data sets here (set VPPS_DATA): the data is synthetic", file=sys.stderr)
    return found


def data_of(name: str, folder: Path | None) -> Path | None:
    """Return the path of a task's data; None for synthetic data."""
    if folder is None or name not in DATA:
        return None
    path = folder / DATA[name]  # keeps an absolute path as it is
    return path if path.exists() else None


def make_task(name: str, data: Path | None, hidden: int | None, embedding: int | None, limit: int) -> Task[Any]:
    """Return a task with at most `limit` training examples.

    Args:
        data: path of real data, or None for synthetic data.
        hidden: default: the VPPS paper's size.
        embedding: default: as hidden.
    """
    kind = TASKS[name].settings_type
    hidden = hidden or SIZES.get(name, SIZE)
    chosen = {"hidden": hidden, "embedding": embedding or hidden, "per_child": True} | SETTINGS.get(name, {})
    known = {key: value for key, value in chosen.items() if key in kind.__dataclass_fields__}
    return TASKS[name](kind(data=data, limit=limit, **known))


def sizes_of(task: Task[Any]) -> str:
    """Return the size settings, as words of a case."""
    settings: Any = task.settings  # type: ignore[attr-defined]
    fields = type(settings).__dataclass_fields__.values()
    names = [f.name for f in fields if f.metadata["shapes_model"] or f.name in SETTINGS.get(task.name, {})]
    return " ".join(f"{name}={getattr(settings, name)}" for name in names)
