"""Language models: what word comes next, in windows of a stream or in sentences."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.data import GraphBatch, GraphSet, graphs_of_stream, graphs_of_text, read_stream, read_text, synthetic_text
from vpps.zoo.language_model import LSTMLanguageModel
from vpps.zoo.task import Settings, Task, setting
from vpps.zoo.tasks.files import Source, kept, names_of, set_with_names, train_and_dev
from vpps.zoo.tasks.perplexity import perplexity


@dataclass(frozen=True, kw_only=True)
class LanguageSettings(Settings):
    """Sizes of a language model."""

    hidden: int = setting(256, "Length of the state.", min=1, shapes_model=True)
    embedding: int = setting(256, "Length of a word vector.", min=1, shapes_model=True)
    min_count: int = setting(
        2, "Rarer words become unknown; 1 suits text that has <unk> in their place, as Mikolov's.", min=1,
        shapes_model=True,
    )  # fmt: skip


class LanguageTask(Task[GraphBatch]):
    """The words of a text, each predicted from those before it."""

    settings_type: ClassVar[type[Settings]] = LanguageSettings
    training: ClassVar[Mapping[str, Any]] = {"epochs": 10, "lr": 3e-3, "clip_norm": 5.0}
    data_help: ClassVar[str] = (
        "A folder with train.txt and dev.txt, or a text file of which the last tenth is held out; one tokenised "
        "sentence a line, such as the Penn Treebank's text."
    )
    lower_is_better: ClassVar[bool] = True
    unit = "word"

    network: LSTMLanguageModel
    train: GraphSet
    dev: GraphSet

    def __init__(self, settings: LanguageSettings, state: Mapping[str, Any] | None = None) -> None:
        self.settings: Any = settings
        like = None if state is None else set_with_names(kept(state, "names"))
        if settings.data is None:
            train, dev = synthetic_text()
            self.train = self.graphs_of(train, like)
            self.dev = self.graphs_of(dev, self.train)
        else:
            sources = train_and_dev(settings.data)
            self.train = self.read(sources[0], like)
            self.dev = self.read(sources[1], self.train)
        if settings.limit is not None:
            self.train = self.train.subset(slice(settings.limit))
        self.n_words = len(self.train.vocabularies["word"])
        self.model = vpps.Model(seed=settings.seed)
        self.network = LSTMLanguageModel(
            self.model, self.n_words, embedding=settings.embedding, hidden=settings.hidden
        )  # fmt: skip

    @abstractmethod
    def read(self, source: Source, like: GraphSet | None) -> GraphSet:
        """The graphs of a file."""

    @abstractmethod
    def graphs_of(self, sentences: list[list[str]], like: GraphSet | None) -> GraphSet:
        """The graphs of sentences."""

    @property
    def description(self) -> str:
        sizes = f"{self.train.n_vertices} train and {self.dev.n_vertices} dev words, {self.n_words} different ones"
        return f"{sizes}, {self.model.n_weights} weights"

    def state(self) -> dict[str, Any]:
        return {"names": names_of(self.train)}

    def loss(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Expression:
        return self.network.loss(graph, batch)

    def units(self, batch: GraphBatch) -> int:
        return batch.n_vertices

    def outputs(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Rows:
        """The cross entropy of every word: one number, where the logits would be thousands."""
        return self.network.losses(graph, batch)

    def scores(self, results: Iterable[tuple[GraphBatch, NDArray[np.float32]]]) -> dict[str, float]:
        """Perplexity: the exponential of the mean cross entropy."""
        return {"dev perplexity": perplexity(losses for _, losses in results)}


@dataclass(frozen=True, kw_only=True)
class WindowSettings(LanguageSettings):
    """Sizes of a language model over windows."""

    steps: int = setting(64, "Words per window.", min=1)


class FixedLSTMTask(LanguageTask):
    """Train an LSTM language model on windows of 64 words (Fixed-LSTM of Xu et al. 2018)."""

    name = "fixed-lstm"
    settings_type = WindowSettings

    def read(self, source: Source, like: GraphSet | None) -> GraphSet:
        return read_stream(source, steps=self.settings.steps, min_count=self.settings.min_count, like=like)

    def graphs_of(self, sentences: list[list[str]], like: GraphSet | None) -> GraphSet:
        return graphs_of_stream(sentences, steps=self.settings.steps, min_count=self.settings.min_count, like=like)


class VarLSTMTask(LanguageTask):
    """Train an LSTM language model on sentences (Var-LSTM of Xu et al. 2018)."""

    name = "var-lstm"

    def read(self, source: Source, like: GraphSet | None) -> GraphSet:
        return read_text(source, min_count=self.settings.min_count, like=like)

    def graphs_of(self, sentences: list[list[str]], like: GraphSet | None) -> GraphSet:
        return graphs_of_text(sentences, min_count=self.settings.min_count, like=like)
