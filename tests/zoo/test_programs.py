"""The network over programs: its equations written once more, in NumPy, and where its data come from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import vpps
from vpps.data import GraphSet
from vpps.errors import DataError
from vpps.reference import Reference, weights_of
from vpps.zoo import ProgramGRU
from vpps.zoo.tasks.programs import ProgramSettings, ProgramTask

pytestmark = pytest.mark.host

H, E = 5, 3
CHILDREN = [[], [], [0], [1, 2], [3, 0, 2, 1, 1]]


def sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-x))


def test_message_and_update() -> None:
    """Leaves, one child, two, and more, which attention pools."""
    model = vpps.Model(seed=5)
    network = ProgramGRU(model, 3, 4, 2, embedding=E, hidden=H)
    w = weights_of(model)
    types, names = [0, 0, 1, 2, 2], [3, 2, 0, 1, 1]
    offsets = np.cumsum([0, *map(len, CHILDREN)])
    batch = GraphSet(
        [5], (offsets, [c for some in CHILDREN for c in some]), kind=np.diff(offsets) > 0, kinds=("leaf", "inner"),
        columns={"type": types, "name": names}, graph_columns={"label": [1]},
    )[:]  # fmt: skip
    states: list[NDArray[np.float64]] = []
    for children, type, name in zip(CHILDREN, types, names, strict=True):
        x = w["types"][type] + w["names"][name]
        hs = [states[k] for k in children]
        first, second, *others = [*hs, *[np.zeros(H)] * max(0, 2 - len(hs))]
        scores = np.array([w["query/W"] @ x @ h for h in others]) / np.sqrt(H)
        pooled = sum((np.exp(scores) / np.exp(scores).sum())[:, None] * others) if others else np.zeros(H)
        m = w["message/W"] @ np.concatenate([first, second, pooled])
        xr, xz, xn = np.split(w["gru/W"] @ x + w["gru/b"], 3)
        ur, uz = np.split(w["gru/U"] @ m, 2)
        z = sigmoid(xz + uz)
        states.append(z * m + (1 - z) * np.tanh(xn + w["gru/V"] @ (sigmoid(xr + ur) * m)))
    logits = w["output/W"] @ states[-1] + w["output/b"]

    graph = vpps.Graph()
    found, loss = network.logits(graph, batch), network.loss(graph, batch)
    reference = Reference(graph, weights_of(model))
    assert len(found) == 1
    np.testing.assert_allclose(reference.value(found[0]), logits, rtol=1e-12)
    assert reference.value(loss) == pytest.approx(np.log(np.exp(logits).sum()) - logits[1], rel=1e-12)


def write(folder: Path, n: int) -> None:
    folder.mkdir()
    for k in range(n):
        (folder / f"{k:02}.py").write_text(f"def get_{k}(x):\n    return x + {k}\ndef is_{k}(y): pass\n")


def test_one_file_of_ten_is_for_judging(tmp_path: Path) -> None:
    write(tmp_path / "code", 12)
    task = ProgramTask(ProgramSettings(data=tmp_path / "code", hidden=4, embedding=4))
    assert (len(task.train), len(task.dev)) == (22, 2)
    assert "9" not in task.train.vocabularies["name"]
    again = ProgramTask(ProgramSettings(data=tmp_path / "code", hidden=4, embedding=4), task.state())
    assert again.dev[:]["name"].tolist() == task.dev[:]["name"].tolist()


def test_folders_train_and_dev(tmp_path: Path) -> None:
    write(tmp_path / "train", 3)
    write(tmp_path / "dev", 1)
    task = ProgramTask(ProgramSettings(data=tmp_path, hidden=4, embedding=4))
    assert (len(task.train), len(task.dev)) == (6, 2)


def test_folder_that_is_not_there_is_refused_as_such(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="code: there is no such folder"):
        ProgramTask(ProgramSettings(data=tmp_path / "code"))


def test_too_few_files_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "code", 9)
    with pytest.raises(DataError, match=r"code: expected a folder with at least 10 Python files .* found 9"):
        ProgramTask(ProgramSettings(data=tmp_path / "code"))


def test_scores_show_the_largest_class() -> None:
    task = ProgramTask(ProgramSettings(hidden=4, embedding=4, limit=10))
    batch = task.dev[:4]
    logits = np.zeros((4, 3), np.float32)
    logits[np.arange(4), batch["label"]] = 1
    logits[0] = -logits[0]
    assert task.scores([(batch, logits)]) == {
        "dev accuracy": 0.75, "of the largest class": np.bincount(batch["label"]).max() / 4,
    }  # fmt: skip
