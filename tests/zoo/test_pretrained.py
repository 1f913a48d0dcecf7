"""Networks come back from their folders as they were saved; everything else is refused with a reason."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vpps
from tests.classifier import same_bits
from tests.zoo.cases import Case, every_case, values
from vpps.data import graphs_of_trees, parse_tree
from vpps.errors import CheckpointError, ModelError
from vpps.model.state import Averages
from vpps.nn import Linear
from vpps.zoo import BiLSTMTagger, LSTMLanguageModel, TreeLSTMSentiment

pytestmark = pytest.mark.host


@dataclass
class Scorer(vpps.Pretrained):
    """A user's network, whose constructor a decorator writes."""

    model: vpps.Model
    sizes: Any
    bias: bool = True
    init: Any = "glorot_uniform"

    def __post_init__(self) -> None:
        with self.model.scope("scorer"):
            first, last = self.sizes
            self.output = Linear(self.model, first, last, bias=self.bias, init=self.init)


class Renamed(Scorer):
    def __init__(self, model: vpps.Model, n: int, **options: Any) -> None:
        super().__init__(model, (n, n), **options)


def tagger(seed: int = 1) -> BiLSTMTagger:
    return BiLSTMTagger(vpps.Model(seed=seed), 9, 3, embedding=4, hidden=5, mlp=6)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a tagger."""
    tagger().save_pretrained(tmp_path / "networks" / "tagger")
    return tmp_path / "networks" / "tagger"


@every_case
def test_every_network_of_the_zoo_comes_back(case: Case, tmp_path: Path) -> None:
    """Its loss on the same batch is the same to the last bit, by the class and without naming it."""
    task = case.make()
    task.network.save_pretrained(tmp_path)
    batch = task.dev[:4]
    for kind in (type(task.network), vpps.Pretrained):
        again = kind.from_pretrained(tmp_path)
        assert type(again) is type(task.network)
        assert same_bits(again.model.numpy(), task.model.numpy())
        found = []
        for network in (task.network, again):
            graph = vpps.Graph()
            found += values(network.model, graph, network.loss(graph, batch))
        assert found[0] == found[1]


def test_the_folder_holds_what_others_can_read(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    sizes = {"n_words": 9, "n_tags": 3, "embedding": 4, "hidden": 5, "mlp": 6}
    assert config == {
        "format": 1, "vpps": vpps.__version__, "class": "vpps.zoo.BiLSTMTagger", "arguments": sizes, "names": [],
    }  # fmt: skip
    assert same_bits(load_file(folder / "model.safetensors"), tagger().model.numpy())
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}


def test_names_of_words_and_classes_come_back_with_the_network(tmp_path: Path) -> None:
    trees = graphs_of_trees([parse_tree("(1 (2 not) (0 good))")], min_count=1)
    network = TreeLSTMSentiment(vpps.Model(), len(trees.vocabularies["word"]), embedding=4, hidden=4)
    network.save_pretrained(tmp_path, like=trees)
    network = TreeLSTMSentiment.from_pretrained(tmp_path)
    new = graphs_of_trees([parse_tree("(1 (2 good) (0 unheard))")], like=network.like)
    assert new[:]["word"].tolist()[:2] == [trees.vocabularies["word"]["good"], 0]
    network.save_pretrained(tmp_path / "again")  # with the names that it came with
    network.like = None
    network.save_pretrained(tmp_path)
    assert TreeLSTMSentiment.from_pretrained(tmp_path).like is None
    assert TreeLSTMSentiment.from_pretrained(tmp_path / "again").like is not None
    network.save_pretrained(tmp_path, like={"source": trees, "target": trees})
    found = vpps.Pretrained.from_pretrained(tmp_path).like
    assert isinstance(found, dict)
    assert [graphs.vocabularies["word"].words for graphs in found.values()] == [trees.vocabularies["word"].words] * 2


def test_users_classes_need_nothing_but_the_base_class(tmp_path: Path) -> None:
    scorer = Scorer(vpps.Model(seed=3), (np.int64(4), 2), bias=False)
    scorer.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["class"] == "Scorer"
    assert config["arguments"] == {"sizes": [4, 2], "bias": False, "init": "glorot_uniform"}  # with the defaults
    again = Scorer.from_pretrained(tmp_path)
    assert same_bits(again.model.numpy(), scorer.model.numpy())
    Renamed(vpps.Model(), 4, bias=False).save_pretrained(tmp_path)
    assert type(Scorer.from_pretrained(tmp_path)) is Renamed


def test_a_network_within_a_larger_model_is_saved_alone(tmp_path: Path) -> None:
    model = vpps.Model(seed=1)
    model.parameter("scorer/linear/W", (7, 7))
    with model.scope("of a tree"):
        inner = Scorer(model, [4, 2])
    inner.save_pretrained(tmp_path)
    assert sorted(load_file(tmp_path / "model.safetensors")) == ["scorer/linear/W", "scorer/linear/b"]
    larger = vpps.Model(seed=9)
    with larger.scope("x"):
        Scorer.from_pretrained(tmp_path, model=larger)
    np.testing.assert_array_equal(larger["x/scorer/linear/W"].numpy(), inner.output.W.numpy())
    with larger.scope("x"), pytest.raises(CheckpointError, match="'x/scorer/linear/W' is already a parameter"):
        Scorer.from_pretrained(tmp_path, model=larger)


def test_averages_are_written_while_the_model_shows_them(tmp_path: Path) -> None:
    network = tagger()
    average = {p.name: p.numpy() + 1 for p in network.model}
    network.model.averages = Averages(0.9, updates=1, values=average)
    with network.model.averaged():
        network.save_pretrained(tmp_path)
    assert same_bits(BiLSTMTagger.from_pretrained(tmp_path).model.numpy(), average)


@pytest.mark.parametrize("change, message", [
    (lambda config: config | {"format": 2, "vpps": "9.1"}, "written by vpps 9.1 in format 2; .* install a newer vpps"),
    (lambda config: config | {"class": "Unheard"}, "holds a 'Unheard', which is neither Pretrained nor a subclass"),
    (lambda config: config | {"class": "os.system"}, "holds a 'os.system'"),
    (lambda config: config | {"arguments": {"n_words": 9}}, "missing 1 required positional argument: 'n_tags'"),
    (lambda config: config | {"arguments": {**config["arguments"], "layers": 2}}, "unexpected keyword .*'layers'"),
    (lambda config: config | {"arguments": {**config["arguments"], "hidden": -5}},
     "expected a tuple of .* positive ints"),
    (lambda config: config | {"arguments": {**config["arguments"], "n_words": 8}},
     r"'words' has shape \(9, 4\) in the file and \(8, 4\) in the network"),
    (lambda config: config | {"names": [""]}, "names.json: no such file"),
    (lambda config: config | {"format": "1"}, "damaged, or not written by save_pretrained"),
    (lambda config: [config], "damaged: no JSON object"),
])  # fmt: skip
def test_a_config_that_does_not_fit_is_refused(folder: Path, change: Callable[[Any], Any], message: str) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(CheckpointError, match=message):
        vpps.Pretrained.from_pretrained(folder)


def test_weights_that_do_not_fit_are_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    save_file({name: w for name, w in weights.items() if name != "mlp/output/b"}, path)
    with pytest.raises(CheckpointError, match="another network: the file lacks 'mlp/output/b'"):
        BiLSTMTagger.from_pretrained(folder)
    save_file(weights | {"crf": np.zeros(3, np.float32)}, path)
    with pytest.raises(CheckpointError, match="another network: the network lacks 'crf'"):
        BiLSTMTagger.from_pretrained(folder)
    save_file(weights | {"words": weights["words"].T.copy()}, path)
    with pytest.raises(CheckpointError, match=r"'words' has shape \(4, 9\) in the file and \(9, 4\) in the network"):
        BiLSTMTagger.from_pretrained(folder)
    save_file(weights, path)  # by another program, without a checksum
    assert same_bits(BiLSTMTagger.from_pretrained(folder).model.numpy(), weights)
    tagger().save_pretrained(folder)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="the checksum does not match"):
        BiLSTMTagger.from_pretrained(folder)
    path.write_bytes(pickle.dumps(weights))
    with pytest.raises(CheckpointError, match="damaged or not a safetensors file"):
        BiLSTMTagger.from_pretrained(folder)


def test_a_class_that_is_not_asked_for_is_refused(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds a 'vpps.zoo.BiLSTMTagger', which is neither LSTMLanguageModel"):
        LSTMLanguageModel.from_pretrained(folder)
    with pytest.raises(CheckpointError, match=r"config.json: no such file; expected a folder that save_pretrained"):
        vpps.Pretrained.from_pretrained(folder / "nowhere")


def test_what_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    class Changing(vpps.Pretrained):
        def __init__(self, model: vpps.Model, sizes: list[int]) -> None:
            self.output = Linear(model, sizes.pop(), 3)

    folder = tmp_path / "folder"
    with pytest.raises(CheckpointError, match=r"Scorer\(init=<function .* of type function"):
        Scorer(vpps.Model(), (4, 2), init=vpps.init.normal(1.0)).save_pretrained(folder)
    with pytest.raises(CheckpointError, match=r"'linear/W' has shape \(3, 4\) in the file and \(3, 5\) in the network"):
        Changing(vpps.Model(), [5, 4]).save_pretrained(folder)
    model = vpps.Model()
    scorer = Scorer(model, (4, 2))
    scorer.output.W.host[0, 0] = np.inf
    with pytest.raises(ModelError, match="'scorer/linear/W': 1 of 8 weights are NaN or infinite"):
        scorer.save_pretrained(folder)
    assert not folder.exists()
    folder.write_text("a file")
    scorer.output.W.host[0, 0] = 0
    with pytest.raises(CheckpointError, match="cannot be created"):
        scorer.save_pretrained(folder)
