"""ONNX Runtime computes from an exported file what vpps computes; everything else is refused with a reason."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vpps
from vpps.data import GraphBatch, GraphSet
from vpps.errors import CheckpointError, ModelError, ShapeError
from vpps.nn import GRU, LSTM, MLP, BiLSTM, Embedding, Linear, NaryTreeLSTM
from vpps.zoo import BiLSTMCharTagger, BiLSTMTagger, LSTMLanguageModel

REASON = "{} is not installed: pip install onnx onnxruntime, or scripts/test, which installs both"
onnx = pytest.importorskip("onnx", reason=REASON.format("onnx"))
runtime = pytest.importorskip("onnxruntime", reason=REASON.format("onnxruntime"))

TOLERANCE = 1e-5


def randomised(model: vpps.Model, seed: int = 1) -> vpps.Model:
    """Make every weight count, biases included."""
    rng = np.random.default_rng(seed)
    for p in model:
        p.assign(rng.normal(size=p.shape) * 0.4)
    return model


def batches(n_words: int | None = None, size: int = 0) -> Iterator[tuple[NDArray[Any], NDArray[Any], GraphBatch]]:
    """Yield padded inputs, (batch, length, size) or numbers of words; the lengths; and the graphs, with columns x."""
    rng = np.random.default_rng(2)
    for lengths in ([1], [7], [3, 5, 1], [4, 4], [2, 9, 6, 1, 1]):
        shape = len(lengths), max(lengths)
        x: Any = rng.normal(size=(*shape, size)).astype(np.float32)
        x = x if n_words is None else rng.integers(n_words, size=shape)
        children = np.concatenate([np.arange(-1, n - 1) for n in lengths])[:, None]
        columns = {"x": np.concatenate([x[k, :n] for k, n in enumerate(lengths)])}
        yield x, np.array(lengths, np.int32), GraphSet(lengths, children, columns=columns | {"word": columns["x"]})[:]


Rows = Callable[[vpps.Graph, GraphBatch], Any]


def compare(model: vpps.Model, network: Any, rows: Rows, path: Path, **of_input: Any) -> None:
    """Compare every vector that ONNX Runtime computes, padding aside, with those that a handle computes."""
    vpps.export_onnx(network, path)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    with vpps.Handle(model, train=False, target="cpu") as handle:
        for x, lengths, batch in batches(**of_input):
            (found,) = session.run(["output"], {"input": x, "lengths": lengths})
            graph = vpps.Graph()
            (expected,) = handle.forward(graph, [rows(graph, batch)])
            assert found.shape == (*x.shape[:2], expected.shape[1])
            found = np.concatenate([found[k, :n] for k, n in enumerate(lengths)])
            np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)
            assert np.abs(expected).max() > 0.01


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "network.onnx"


@pytest.mark.cpu
class TestAgainstOnnxRuntime:
    @pytest.mark.parametrize("kind, options", [(LSTM, {}), (GRU, {}), (GRU, {"reset_after": True, "num_layers": 2})])
    @pytest.mark.parametrize("size, hidden", [(1, 1), (3, 5), (17, 8)])
    def test_one_direction(self, kind: Any, options: dict[str, Any], size: int, hidden: int, path: Path) -> None:
        model = vpps.Model()
        layer = kind(model, size, hidden, **options)
        randomised(model, seed=hidden)
        compare(model, layer, lambda graph, batch: layer(graph, batch, batch["x"])[0], path, size=size)

    @pytest.mark.parametrize("size, hidden", [(1, 1), (6, 5)])
    def test_both_directions_one_behind_the_other(self, size: int, hidden: int, path: Path) -> None:
        model = vpps.Model()
        layer = BiLSTM(model, size, hidden)
        randomised(model)
        compare(model, layer, lambda graph, batch: vpps.concat(layer(graph, batch, batch["x"])), path, size=size)

    def test_a_deep_network(self, path: Path) -> None:
        model = vpps.Model()
        words, first = Embedding(model, 9, 4), BiLSTM(model, 4, 3)
        second, third, output = GRU(model, 6, 5, reset_after=True), LSTM(model, 5, 7), Linear(model, 7, 3, bias=False)
        randomised(model)

        def rows(graph: vpps.Graph, batch: GraphBatch) -> Any:
            h = vpps.concat(first(graph, batch, words(graph, batch["x"])))
            return vpps.softmax(output(vpps.relu(third(graph, batch, second(graph, batch, h)[0])[0])))

        network = [words, first, second, third, vpps.relu, output, vpps.softmax]
        compare(model, network, rows, path, n_words=9)

    def test_networks_of_the_zoo(self, path: Path) -> None:
        language = LSTMLanguageModel(vpps.Model(), 9, embedding=4, hidden=6)
        for network in (language, BiLSTMTagger(vpps.Model(), 9, 3, embedding=4, hidden=5, mlp=6)):
            randomised(network.model)
            compare(network.model, network, network.logits, path, n_words=9)

    def test_layers_without_a_recurrence_take_a_batch_of_vectors(self, path: Path) -> None:
        model = vpps.Model()
        layers = [MLP(model, 4, (6, 5), 3), vpps.sigmoid, Linear(model, 3, 2, name="last")]
        randomised(model)
        vpps.export_onnx(layers, path)
        x, graph = np.random.default_rng(3).normal(size=(7, 4)).astype(np.float32), vpps.Graph()
        session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
        with vpps.Handle(model, train=False, target="cpu") as handle:
            (expected,) = handle.forward(graph, [layers[2](vpps.sigmoid(layers[0](graph.rows(x))))])
        (found,) = session.run(["output"], {"input": x})
        np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


@vpps.cell
def own(x: vpps.Expression) -> vpps.Expression:
    return x + 1


@pytest.mark.host
class TestRefusals:
    def test_layers_that_onnx_cannot_compute(self, path: Path) -> None:
        class Changed(LSTM):
            """Its cells may compute something else."""

        model = vpps.Model()
        refused = [
            own, Changed(model, 2, 3), NaryTreeLSTM(model, 2, 3), abs, [vpps.nn.Linear],
            BiLSTMCharTagger(model, 5, 5, 2, embedding=4, characters=2, hidden=2, mlp=2),
        ]  # fmt: skip
        messages = ["a cell of yours", *["no layer that"] * 4, "no stack of layers"]
        for network, said in zip(refused, messages, strict=True):
            with pytest.raises(ModelError, match=said):
                vpps.export_onnx(network, path)
        assert not path.exists()

    def test_layers_that_do_not_fit_together(self, path: Path) -> None:
        model = vpps.Model()
        linear, words = Linear(model, 3, 4), Embedding(model, 5, 3)
        with pytest.raises(ShapeError, match="'linear': 3 -> 4> takes vectors of 3; the layers before it make 4"):
            vpps.export_onnx([linear, linear], path)
        with pytest.raises(ModelError, match="an embedding has to be the first layer"):
            vpps.export_onnx([linear, words], path)
        with pytest.raises(ModelError, match="an embedding has to be the first layer, and rows be vectors"):
            vpps.export_onnx([model.lookup("matrices", (5, 3, 3))], path)
        for nothing in ([], [vpps.tanh]):
            with pytest.raises(ModelError, match="with at least one"):
                vpps.export_onnx(nothing, path)

    def test_files_that_cannot_be_written(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        linear = Linear(vpps.Model(), 3, 4)
        with pytest.raises(CheckpointError, match="cannot be written"):
            vpps.export_onnx(linear, path / "below")
        monkeypatch.setattr("vpps.nn.export.MOST_BYTES", 100)
        with pytest.raises(ModelError, match="an ONNX file holds at most 2 GiB"):
            vpps.export_onnx(linear, path)

    def test_a_missing_package(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "onnx", None)
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'vpps\[onnx\]'"):
            vpps.export_onnx(Linear(vpps.Model(), 3, 4), path)
