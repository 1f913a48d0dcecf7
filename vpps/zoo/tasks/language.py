"""Language models: what word comes next, in windows of a stream or in sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vpps.data import GraphBatch, GraphSet, graphs_of_stream, graphs_of_text, read_stream, read_text, synthetic_text
from vpps.zoo.language_model import LSTMLanguageModel
from vpps.zoo.task import Settings, setting
from vpps.zoo.tasks.files import read_both, set_kept, train_and_dev
from vpps.zoo.tasks.network import NextWordTask


@dataclass(frozen=True, kw_only=True)
class LanguageSettings(Settings):
    """Sizes of a language model."""

    hidden: int = setting(256, "Length of the state.", min=1, shapes_model=True)
    embedding: int = setting(256, "Length of a word vector.", min=1, shapes_model=True)
    min_count: int = setting(
        2, "Rarer words become unknown; 1 suits text that has <unk> in their place, as Mikolov's.", min=1,
        shapes_model=True,
    )  # fmt: skip


class LanguageTask(NextWordTask):
    """The words of a text, each predicted from those before it.

    Attributes:
        read, graphs_of: graphs of a file and of sentences.
    """

    network_type = LSTMLanguageModel
    settings_type: ClassVar[type[Settings]] = LanguageSettings
    training: ClassVar[Mapping[str, Any]] = {"epochs": 10, "lr": 3e-3, "clip_norm": 5.0}
    data_help: ClassVar[str] = (
        "A folder with train.txt and dev.txt, or a text file of which the last tenth is held out; one tokenised "
        "sentence a line, such as the Penn Treebank's text."
    )
    read: ClassVar[Callable[..., GraphSet]]
    graphs_of: ClassVar[Callable[..., GraphSet]]

    def load(self, settings: LanguageSettings, state: Mapping[str, Any] | None) -> None:
        options = {"min_count": settings.min_count}
        if isinstance(settings, WindowSettings):
            options["steps"] = settings.steps
        like = set_kept(state)
        if settings.data is None:
            train, self.dev = read_both(self.graphs_of, synthetic_text(), like, **options)
        else:
            train, self.dev = read_both(self.read, train_and_dev(settings.data), like, **options)
        self.train = train.subset(slice(settings.limit))
        self.n_words = len(train.vocabularies["word"])

    @property
    def description(self) -> str:
        sizes = f"{self.train.n_vertices} train and {self.dev.n_vertices} dev words, {self.n_words} different ones"
        return f"{sizes}, {self.model.n_weights} weights"

    def units(self, batch: GraphBatch) -> int:
        return batch.n_vertices


@dataclass(frozen=True, kw_only=True)
class WindowSettings(LanguageSettings):
    """Sizes of a language model over windows."""

    steps: int = setting(64, "Words per window.", min=1)


class FixedLSTMTask(LanguageTask):
    """Train an LSTM language model on windows of 64 words (Fixed-LSTM of Xu et al. 2018)."""

    name = "fixed-lstm"
    settings_type = WindowSettings
    read, graphs_of = staticmethod(read_stream), staticmethod(graphs_of_stream)


class VarLSTMTask(LanguageTask):
    """Train an LSTM language model on sentences (Var-LSTM of Xu et al. 2018)."""

    name = "var-lstm"
    read, graphs_of = staticmethod(read_text), staticmethod(graphs_of_text)
