"""Translation: sentences of one language to those of another."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import vpps
from vpps.data import GraphBatch, GraphSet, chain_pairs, graphs_of_text, synthetic_parallel
from vpps.data.lines import hold_out, read_lines
from vpps.data.readers.sentences import BOUNDARY, check_parallel, read_pairs
from vpps.distributed import World
from vpps.errors import CheckpointError, DataError
from vpps.zoo.encoder_decoder import EncoderDecoder
from vpps.zoo.task import EVALUATION_BATCH, Settings, in_turns, setting
from vpps.zoo.tasks.files import Source, kept, listed, names_of, set_with_names
from vpps.zoo.tasks.network import NextWordTask

MIN_COUNT = 2  # words seen once train the embedding of unknown words
LONGEST = 100  # words of a translation

Pairs = list[tuple[list[str], list[str]]]


@dataclass(frozen=True, kw_only=True)
class TranslationSettings(Settings):
    """Sizes of an encoder and decoder, and the direction."""

    hidden: int = setting(256, "Length of the states.", min=1, shapes_model=True)
    embedding: int = setting(256, "Length of a word vector.", min=1, shapes_model=True)
    attention: bool = setting(False, "Let the decoder look at all states of the encoder.", shapes_model=True)
    source: str = setting("en", "Ending of the files to translate from.", shapes_model=True)


class TranslationTask(NextWordTask):
    """Train an LSTM encoder-decoder to translate (Sutskever et al. 2014).

    Attributes:
        references: the dev translations, words as they are written.
    """

    name = "nmt"
    network_type = EncoderDecoder
    settings_type = TranslationSettings
    training: ClassVar[Mapping[str, Any]] = {"epochs": 15, "lr": 3e-3, "clip_norm": 5.0}
    summary: ClassVar[str] = "pairs of sentences, {task.n_source} and {task.n_target} different words"
    data_help: ClassVar[str] = (
        "A folder with train.X, train.Y, dev.X and dev.Y, where X and Y are languages (train.en, train.vi), or with "
        "one pair of files of which the last tenth is held out; one tokenised sentence a line. BLEU needs sacrebleu."
    )

    network: EncoderDecoder
    references: list[list[str]]

    def load(self, settings: TranslationSettings, state: Mapping[str, Any] | None) -> None:
        like = None if state is None else _sides(kept(state, "names"))
        train, dev = synthetic_parallel() if settings.data is None else _read(settings.data, settings.source)
        self.train, sides = _graphs_of(train, like)
        self.dev, _ = _graphs_of(dev, sides)
        self._names = [names_of(side) for side in sides]
        self.references = [translation for _, translation in dev]
        self.train = self.train.subset(slice(settings.limit))
        source, self.words = (side.vocabularies["word"] for side in sides)
        self.n_source, self.n_target, self.boundary = len(source), len(self.words), self.words[BOUNDARY]

    def state(self) -> dict[str, Any]:
        return {"names": self._names}

    def units(self, batch: GraphBatch) -> int:
        return len(self.network.target_vertices(batch))

    def evaluate(self, handle: vpps.Handle, world: World | None = None) -> dict[str, float]:
        """Perplexity; and BLEU of greedy translations (Papineni et al. 2002) where sacrebleu is installed."""
        found = super().evaluate(handle, world)
        if importlib.util.find_spec("sacrebleu") is not None:
            found["BLEU"] = self.bleu(self.translations(handle, world))
        return found

    def translations(self, handle: vpps.Handle, world: World | None = None) -> list[list[str]]:
        """Of the dev sentences, in order; `world` as in `evaluate`."""
        batches = self.dev.batches(EVALUATION_BATCH, shuffle=False)
        found = in_turns(lambda batch: self.network.translate(handle, batch, LONGEST), batches, world)
        return [[self.words.words[word] for word in translation] for some in found for translation in some]

    def bleu(self, translations: Iterable[Iterable[str]]) -> float:
        """BLEU of the dev set, 0 to 100; texts are taken as they are tokenised. Needs sacrebleu."""
        import sacrebleu

        found = sacrebleu.corpus_bleu(
            [" ".join(words) for words in translations], [[" ".join(words) for words in self.references]],
            tokenize="none", force=True,
        )  # fmt: skip
        return float(found.score)


def _sides(names: Any) -> tuple[GraphSet, ...]:
    """Of source and target, from a checkpoint. Raises CheckpointError."""
    if not isinstance(names, list) or len(names) != 2:
        raise CheckpointError("damaged: the names of two languages are missing")
    return tuple(map(set_with_names, names))


def _graphs_of(pairs: Pairs, like: tuple[GraphSet, ...] | None) -> tuple[GraphSet, tuple[GraphSet, ...]]:
    """The pairs as chains, the source backwards; and the sets of both sides."""
    source, target = (
        graphs_of_text(
            [pair[k] for pair in pairs],
            min_count=MIN_COUNT if like is None else None,
            targets=k == 1,
            like=None if like is None else like[k],
        )
        for k in range(2)
    )
    return chain_pairs(source.reversed(), target), (source, target)


def _read(folder: Path, source: str) -> tuple[Pairs, Pairs]:
    return tuple([(a, b) for _, a, b in read_pairs(*files)] for files in parallel_files(folder, source))  # type: ignore[return-value]


def parallel_files(folder: Path, source: str) -> tuple[tuple[Source, Source], tuple[Source, Source]]:
    """Sources for readers, (source, target) to train on and to judge by: train.X, train.Y, dev.X, dev.Y of a folder; or
    the only pair of files whose names differ in their endings, with the last tenth of its lines for the latter.

    Args:
        source: X. What ends in `.gz` is compressed, and the language stands before that.

    Raises:
        DataError: the folder has neither, or the files of the only pair differ in length.
    """
    if not os.path.isdir(folder):
        raise DataError(f"{folder}: expected a folder with a file per language, such as train.en and train.vi")
    by_name: dict[str, dict[str, Path]] = {}
    paths = listed(folder)
    for path in paths:
        name, _, language = path.name.removesuffix(".gz").rpartition(".")
        by_name.setdefault(name, {})[language] = path
    pairs: dict[str, tuple[Path, Path]] = {}
    for name, languages in by_name.items():
        others = [path for language, path in languages.items() if language != source]
        if source in languages and len(others) == 1:
            pairs[name] = languages[source], others[0]
    if "train" in pairs and "dev" in pairs:
        return pairs["train"], pairs["dev"]
    if len(pairs) != 1:
        found = ", ".join(path.name for path in paths) or "nothing"
        raise DataError(
            f"{folder}: expected train.{source} and dev.{source} with their translations, or one pair of files, found "
            f"{found}; --source says which ending is that of the source"
        )
    (first, second), *_ = pairs.values()
    n_first, n_second = (sum(1 for _ in read_lines(path)) for path in (first, second))
    check_parallel(first, n_first, second, n_second)
    train, dev = hold_out(first)
    return (train, replace(train, path=second)), (dev, replace(dev, path=second))
