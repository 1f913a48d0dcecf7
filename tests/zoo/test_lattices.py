"""Lattice networks: their equations in NumPy, and their scores' units."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vpps
from tests.zoo.cases import CASES, values
from vpps.data import GraphBatch, GraphSet
from vpps.errors import DataError
from vpps.reference import weights_of
from vpps.zoo import LatticeGRU, LatticeLSTM
from vpps.zoo.task import Task

pytestmark = pytest.mark.host

H, E = 5, 3
Weights = Mapping[str, NDArray[np.float64]]


def lattice() -> GraphBatch:
    """Return four characters; word 0 is the first two, word 1 the last three, word 2 the last two."""
    children: list[list[int]] = [[-1], [-1], [0, 1], [2], [0], [2], [3, 4, 5]]
    kind = [0, 1, 0, 0, 1, 1, 0]
    symbols: dict[str, Any] = {
        "character": [2, -1, 0, 3, -1, -1, 1], "word": [-1, 0, -1, -1, 1, 2, -1], "tag": [0, -1, 1, 0, -1, -1, 2],
    }  # fmt: skip
    offsets = np.cumsum([0, *map(len, children)])
    return GraphSet(
        [7], (offsets, [c for some in children for c in some]), kind=kind, kinds=("character", "word"), columns=symbols
    )[:]  # fmt: skip


def logits_of(network: Any, model: vpps.Model) -> NDArray[np.float64]:
    graph = vpps.Graph()
    (found,) = values(model, graph, network.logits(graph, lattice()))
    return found


def sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-x))


def test_lattice_lstm_is_that_of_the_paper() -> None:
    """Equations 11 to 16 of Zhang & Yang 2018, character by character."""
    model = vpps.Model(seed=2)
    network = LatticeLSTM(model, 4, 3, 3, embedding=E, hidden=H)
    w = weights_of(model)

    def word(number: int, h: NDArray[np.float64], c: NDArray[np.float64]) -> NDArray[np.float64]:
        i, f, u = np.split(w["word/W"] @ w["words"][number] + w["word/U"] @ h + w["word/b"], 3)
        return sigmoid(f) * c + sigmoid(i) * np.tanh(u)

    def character(number: int, h: Any, c: Any, memories: list[NDArray[np.float64]]) -> Any:
        x = w["characters"][number]
        i, o, u = np.split(w["character/W"] @ x + w["character/U"] @ h + w["character/b"], 3)
        if memories:
            gates = [sigmoid(i)] + [sigmoid(w["link/W"] @ x + w["link/U"] @ m + w["link/b"]) for m in memories]
            share = np.exp(gates) / np.exp(gates).sum(axis=0)
            c = (share * np.stack([np.tanh(u), *memories])).sum(axis=0)
        else:
            f = sigmoid(w["character/Wf"] @ x + w["character/Uf"] @ h + w["character/bf"])
            c = f * c + sigmoid(i) * np.tanh(u)
        return sigmoid(o) * np.tanh(c), c

    zero = np.zeros(H), np.zeros(H)
    first = character(2, *zero, [])
    second = character(0, *first, [word(0, *zero)])
    third = character(3, *second, [])
    fourth = character(1, *third, [word(1, *first), word(2, *second)])
    expected = [w["output/W"] @ h + w["output/b"] for h, _ in (first, second, third, fourth)]
    np.testing.assert_allclose(logits_of(network, model), expected, rtol=1e-12)


def test_lattice_gru_is_that_of_the_paper() -> None:
    """The deep word-lattice GRU of Su et al. 2017 with its gating operation."""
    model = vpps.Model(seed=2)
    network = LatticeGRU(model, 4, 3, 3, embedding=E, hidden=H)
    w = weights_of(model)

    def gru(x: NDArray[np.float64], h: NDArray[np.float64]) -> NDArray[np.float64]:
        xr, xz, xn = np.split(w["gru/W"] @ x + w["gru/b"], 3)
        ur, uz = np.split(w["gru/U"] @ h, 2)
        n = np.tanh(xn + w["gru/V"] @ (sigmoid(xr + ur) * h))
        return sigmoid(xz + uz) * h + (1 - sigmoid(xz + uz)) * n

    def gated(*states: NDArray[np.float64]) -> NDArray[np.float64]:
        weights = np.array([sigmoid(w["gate/u"] @ h + w["gate/b"]) for h in states])
        return weights / weights.sum() @ np.stack(states)

    characters, words, zero = w["characters"], w["words"], np.zeros(H)
    first = gru(characters[2], zero)
    second = gated(gru(characters[0], first), gru(words[0], zero))
    third = gru(characters[3], second)
    fourth = gated(gru(characters[1], third), gru(words[1], first), gru(words[2], second))
    expected = [w["output/W"] @ h + w["output/b"] for h in (first, second, third, fourth)]
    np.testing.assert_allclose(logits_of(network, model), expected, rtol=1e-12)


@pytest.fixture(scope="module")
def task() -> Task[Any]:
    return CASES["lattice-lstm"].make(limit=20)


def test_f1_leaves_out_the_most_frequent_tag(task: Task[Any]) -> None:
    assert task.outside == 0
    batch = lattice()  # tags 0 1 0 2
    guessed = np.eye(3, dtype=np.float32)[[0, 1, 1, 1]]
    assert task.scores([(batch, guessed)]) == {"dev F1": pytest.approx(2 * 1 / (2 + 3)), "accuracy": 0.5}
    assert task.scores([(batch, np.eye(3, dtype=np.float32)[[0] * 4])])["dev F1"] == 0


def test_units_are_characters(task: Task[Any]) -> None:
    assert task.units(lattice()) == len(task.outputs(vpps.Graph(), lattice())) == 4


def test_a_file_is_no_folder_of_lattices(tmp_path: Path) -> None:
    (tmp_path / "lattices").write_text("")
    with pytest.raises(DataError, match=r"lattices: expected a folder with train\.txt and dev\.txt"):
        CASES["lattice-lstm"].make(tmp_path / "lattices")
