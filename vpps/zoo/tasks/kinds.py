"""Kinds of tasks: each defines data, targets, units of the loss, and scores."""

from __future__ import annotations

import importlib.util
import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.data import (
    GraphBatch,
    GraphSet,
    SpelledBatch,
    SpelledSentences,
    chain_pairs,
    draw_kinds,
    synthetic_parallel,
    tournaments,
)
from vpps.data.readers.sentences import BOUNDARY, graphs_of_pairs, read_pairs
from vpps.data.synthetic import PLAYS
from vpps.distributed import World
from vpps.errors import CheckpointError, DataError
from vpps.zoo.lattices import characters_of
from vpps.zoo.names import count_kept, names_of, set_kept
from vpps.zoo.task import EVALUATION_BATCH, Batch, Task, in_turns
from vpps.zoo.tasks.files import parallel_files, train_and_dev
from vpps.zoo.tasks.spans import tag_scores

LONGEST = 100  # maximum number of words in a translation

Results = Iterable[tuple[GraphBatch, NDArray[np.float32]]]
Words = TypeVar("Words", GraphBatch, SpelledBatch)


class DataKind(NamedTuple):
    """Source of a task's examples.

    Attributes:
        synthetic: function that generates train and dev examples.
        of, read: functions that build a set from examples or from files.
        help: description of the files.
        files: function that finds the train and dev files in the path of `--data`.
        options: options of `of` and `read`.
        min_count: default of the setting `min_count`; rarer words are unknown. None leaves it to the reader.
        derive: function from the set that was read to the set to train on.
        limits_words: True if synthetic examples beyond the limit do not contribute to the vocabulary.
    """

    synthetic: Callable[[], Any]
    of: Callable[..., Any]
    read: Callable[..., Any]
    help: str
    files: Callable[[Path], tuple[Any, Any]] = train_and_dev
    options: Mapping[str, Any] = {}
    min_count: int | None = None
    derive: Callable[[Any], Any] = lambda graphs: graphs
    limits_words: bool = False


class NetworkTask(Task[Batch]):
    """A network of vpps.zoo and its data.

    Attributes:
        network_type: class of the network. Its arguments come from the task's settings or attributes of the same name;
            other arguments keep their defaults.
        data: source of the examples.
        summary: format string that describes the sets; its argument is `task`.
        keeps: names of the sets whose vocabularies a checkpoint stores, for readers to reuse.
        counts: names of the numbers that a checkpoint stores, with their minimum values.
        kept: the sets named by `keeps`.
    """

    network_type: ClassVar[Callable[..., Any]]
    data: ClassVar[DataKind]
    summary: ClassVar[str] = "examples"
    keeps: ClassVar[tuple[str, ...]] = ("names",)
    counts: ClassVar[Mapping[str, int]] = {}

    kept: tuple[GraphSet, ...] = ()

    def __init__(self, settings: Any, state: Mapping[str, Any] | None = None) -> None:
        self.settings = settings
        like, known = None, dict[str, int]()
        if state is not None:
            like = self.like(*(set_kept(state, name) for name in self.keeps))
            known = {name: count_kept(state, name, least) for name, least in self.counts.items()}
        self.load(like, known)
        self.model = vpps.Model(seed=settings.seed)
        self.network = self.make_network()

    def like(self, *kept: GraphSet) -> Any:
        """Return the argument `like` of readers, from a checkpoint's sets."""
        return kept[0]

    @abstractmethod
    def load(self, like: Any, known: Mapping[str, int]) -> None:
        """Set `train`, `dev`, `kept`, and the network sizes that follow from them.

        Args:
            like: result of `like` in a resumed run; None in a new run.
            known: counts from the checkpoint in a resumed run; empty in a new run.
        """

    def read(self, like: Any, **of_files: Any) -> tuple[Any, Any]:
        """Return the train and dev sets, from files or synthetic, before the limit applies.

        Args:
            of_files: options for the file reader only.
        """
        data, options = self.data, dict(self.data.options)
        if hasattr(self.settings, "steps"):
            options["steps"] = self.settings.steps
        if self.settings.data is None:
            make, (train, dev) = data.of, data.synthetic()
            if data.limits_words:
                train = train[: self.settings.limit]
        else:
            make, (train, dev) = data.read, data.files(self.settings.data)
            options |= of_files
        min_count = getattr(self.settings, "min_count", data.min_count) if like is None else None
        first = make(train, like=like, min_count=min_count, **options)
        return first, make(dev, like=first, **options)

    def take(self, train: Any, dev: Any) -> Any:
        """Set `train`, cut to the limit, and `dev`. Return the uncut training set."""
        self.train, self.dev = train.subset(slice(self.settings.limit)), dev
        return train

    def make_network(self) -> Any:
        """Declare the parameters in `self.model`."""
        arguments = {}
        for name, parameter in inspect.signature(self.network_type).parameters.items():
            owner = self.settings if hasattr(self.settings, name) else self
            if name != "model" and (hasattr(owner, name) or parameter.default is parameter.empty):
                arguments[name] = getattr(owner, name)
        return self.network_type(self.model, **arguments)

    @property
    def description(self) -> str:
        sets = f"{len(self.train)} train and {len(self.dev)} dev"
        return f"{sets} {self.summary.format(task=self)}, {self.model.n_weights} weights"

    def state(self) -> dict[str, Any]:
        sets = dict(zip(self.keeps, map(names_of, self.kept), strict=True))
        return sets | {name: getattr(self, name) for name in self.counts}

    def units(self, batch: Any) -> int:
        return int(batch.n_vertices)

    def loss(self, graph: vpps.Graph, batch: Batch) -> vpps.Expression:
        loss: vpps.Expression = self.network.loss(graph, batch)
        return loss

    def outputs(self, graph: vpps.Graph, batch: Batch) -> vpps.Rows:
        logits: vpps.Rows = self.network.logits(graph, batch)
        return logits


def share(right: list[NDArray[np.bool_]]) -> float:
    """Return the fraction of correct results."""
    return float(np.concatenate(right).mean())


class Labels(NetworkTask[GraphBatch]):
    """Predicts column `label` of trees, or of graphs derived from trees.

    Attributes:
        n_classes: labels are 0 to n_classes - 1.
        n_words: size of the vocabulary, including the unknown word.
        arity: maximum number of children of a node; None if children are lists.
    """

    counts: ClassVar[Mapping[str, Any]] = {"n_classes": 1}
    train: GraphSet
    dev: GraphSet

    def load(self, like: Any, known: Mapping[str, int]) -> None:
        if like is not None and (like.arity is None) != self.data.options.get("lists", False):
            raise CheckpointError("damaged: its trees store children in another form")
        trees = self.read(like, n_classes=known.get("n_classes"))
        # Counts the classes in all the data: a resumed run with a different limit must not meet unknown classes.
        self.n_classes = known.get("n_classes") or 1 + max(int(graphs[:]["label"].max()) for graphs in trees)
        self.kept = trees[:1]
        self.n_words, self.arity = len(trees[0].vocabularies["word"]), trees[0].arity
        self.take(*map(self.data.derive, trees))


class Trees(Labels):
    """Predicts labels of tree nodes: kinds leaf and inner, columns word and label."""

    summary = "trees, {task.n_words} words"

    def load(self, like: Any, known: Mapping[str, int]) -> None:
        super().load(like, known)
        self.unit = "tree" if self.settings.root_only else "node"

    def loss(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Expression:
        loss: vpps.Expression = self.network.loss(graph, batch, self.settings.root_only)
        return loss

    def units(self, batch: GraphBatch) -> int:
        return len(batch) if self.settings.root_only else batch.n_vertices

    def scores(self, results: Results) -> dict[str, float]:
        """Return the accuracy at the roots and at all nodes. Outputs cover all nodes even if only roots are trained."""
        roots, nodes = [], []
        for batch, logits in results:
            nodes.append(logits.argmax(axis=1) == batch["label"])
            roots.append(nodes[-1][batch.roots])
        return {"dev root accuracy": share(roots), "all nodes": share(nodes)}


class TwoTypeTrees(Trees):
    """`Trees` with two types of inner nodes. The drawn types are part of the data and do not depend on the seed."""

    def read(self, like: Any, **of_files: Any) -> tuple[GraphSet, GraphSet]:
        train, dev = super().read(like, **of_files)
        types = ["inner 1", "inner 2"]
        return draw_kinds(train, "inner", types, seed=1), draw_kinds(dev, "inner", types, seed=2)


class BinaryTrees(Trees):
    """`Trees` for an MV-RNN, which accepts only binary trees."""

    def load(self, like: Any, known: Mapping[str, int]) -> None:
        super().load(like, known)
        needs = f"{self.settings.data}: an MV-RNN composes two parts, but"
        if self.arity is None or self.arity < 2:
            raise DataError(f"{needs} no tree of the training data has two words")
        for graphs in (self.train, self.dev):
            _, parents, _ = graphs.edges()
            children = np.bincount(parents, minlength=graphs.n_vertices)
            other = children[(children != 0) & (children != 2)]
            if len(other):
                raise DataError(f"{needs} a node has {other[0]}: make the trees binary")


class Sentences(Labels):
    """Predicts the label of each sentence, one per graph."""

    summary = "sentences, {task.n_words} words"
    unit = "sentence"

    def units(self, batch: GraphBatch) -> int:
        return len(batch)

    def scores(self, results: Results) -> dict[str, float]:
        """Return the accuracy of the graphs' labels."""
        return {"dev accuracy": share([logits.argmax(axis=1) == batch["label"] for batch, logits in results])}


class Tournaments(Sentences):
    """Predicts the winner of each tournament. The data is always synthetic."""

    summary = "examples"
    data_help = "None: its trees are synthetic, as in the papers that measure it."
    unit = "tree"
    keeps, counts = (), {}

    def like(self, *kept: GraphSet) -> None:
        """Return None, because there is no vocabulary to reuse."""

    def load(self, like: Any, known: Mapping[str, int]) -> None:
        if self.settings.data is not None:
            raise DataError(f"{self.name} makes its own trees and reads none: leave out --data {self.settings.data}")
        self.n_words, self.n_classes = 30, len(PLAYS)
        sizes = ((8000, 1), (400, 2))
        self.take(*(tournaments(n, self.settings.leaves, n_words=self.n_words, seed=seed) for n, seed in sizes))


class Tags(NetworkTask[Words]):
    """Predicts tags of words.

    Attributes:
        tags: names of the tags, by index.
    """

    training: ClassVar[Mapping[str, Any]] = {"epochs": 10, "batch_size": 16, "lr": 0.001}
    summary = "sentences, {task.n_words} words, {task.n_tags} tags"
    unit = "word"

    def load(self, like: Any, known: Mapping[str, int]) -> None:
        train = self.take(*self.read(like))
        self.kept = self.sets_of(train)
        self.tags = self.kept[0].classes["tag"]
        self.n_words, self.n_tags = len(self.kept[0].vocabularies["word"]), len(self.tags)

    def sets_of(self, train: Any) -> tuple[GraphSet, ...]:
        """Return the sets to store in checkpoints, the set of words first."""
        return (train,)

    def scores(self, results: Iterable[tuple[Words, NDArray[np.float32]]]) -> dict[str, float]:
        """Return the entity F1, if tags mark entities, and the tag accuracy."""
        return tag_scores(
            ((batch.offsets, batch["tag"], logits.argmax(axis=1)) for batch, logits in results), self.tags
        )


class SpelledTags(Tags[SpelledBatch]):
    """`Tags` with rare words represented by their characters.

    Attributes:
        n_characters: rows of the embedding table of characters.
    """

    keeps = ("names", "characters")

    def like(self, *kept: GraphSet) -> SpelledSentences:
        return SpelledSentences(*kept)

    def sets_of(self, train: SpelledSentences) -> tuple[GraphSet, ...]:
        self.n_characters = len(train.spellings.vocabularies["character"])
        return train.sentences, train.spellings


class CharacterTags(NetworkTask[GraphBatch]):
    """Predicts tags of characters in lattices. Tags are numbers without names, so entities cannot be identified.

    Attributes:
        train, dev: sets with kinds character and word, and columns character, word and tag.
        outside: the most frequent tag of the training data, taken to mean "no entity".
    """

    training: ClassVar[Mapping[str, Any]] = {"lr": 0.002, "batch_size": 16}
    summary = "sentences, {task.n_characters} characters, {task.n_words} words, {task.n_tags} tags"
    unit = "character"
    counts: ClassVar[Mapping[str, Any]] = {"n_tags": 1, "outside": 0}

    def load(self, like: Any, known: Mapping[str, int]) -> None:
        train = self.take(*self.read(like))
        self.kept = (train,)
        tags = self.train[:]["tag"]
        highest = max(int(tags.max()), int(self.dev[:]["tag"].max()))
        found = {"n_tags": 1 + highest, "outside": int(np.bincount(tags[tags >= 0]).argmax()), **known}
        self.n_tags, self.outside = found["n_tags"], found["outside"]
        if highest >= self.n_tags:
            raise DataError(f"{self.settings.data}: tag {highest}: the network knows 0 to {self.n_tags - 1}")
        self.n_characters, self.n_words = (len(train.vocabularies[name]) for name in ("character", "word"))

    def units(self, batch: GraphBatch) -> int:
        return len(characters_of(batch))

    def scores(self, results: Results) -> dict[str, float]:
        """Return the F1 and the accuracy of the characters' tags.

        F1 counts only characters whose tag is not the most frequent one. Most characters belong to no entity, so even a
        network that finds no entities has a high accuracy.
        """
        pairs = [(batch["tag"][characters_of(batch)], logits.argmax(axis=1)) for batch, logits in results]
        tags, guessed = (np.concatenate(column) for column in zip(*pairs, strict=True))
        both = int(((tags == guessed) & (tags != self.outside)).sum())
        either = int((tags != self.outside).sum()) + int((guessed != self.outside).sum())
        return {"dev F1": 2 * both / max(either, 1), "accuracy": share([tags == guessed])}


class NextWords(NetworkTask[GraphBatch]):
    """Predicts each word of a text from the words before it."""

    training: ClassVar[Mapping[str, Any]] = {"epochs": 10, "lr": 3e-3, "clip_norm": 5.0}
    lower_is_better = True
    unit = "word"
    train: GraphSet
    dev: GraphSet

    def load(self, like: Any, known: Mapping[str, int]) -> None:
        train = self.take(*self.read(like))
        self.kept = (train,)
        self.n_words = len(train.vocabularies["word"])

    @property
    def description(self) -> str:
        sizes = f"{self.train.n_vertices} train and {self.dev.n_vertices} dev words, {self.n_words} different ones"
        return f"{sizes}, {self.model.n_weights} weights"

    def outputs(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Rows:
        """Return the cross entropy of every word: one number instead of thousands of logits."""
        losses: vpps.Rows = self.network.losses(graph, batch)
        return losses

    def scores(self, results: Results) -> dict[str, float]:
        """Return the perplexity, the exponential of the mean cross entropy of all words.

        It is infinite if training has diverged so far that it overflows a float.
        """
        total, n = 0.0, 0
        for _, losses in results:
            total += float(losses.sum(dtype=np.float64))
            n += len(losses)
        with np.errstate(over="ignore"):
            return {"dev perplexity": float(np.exp(total / n))}


class Translation(NextWords):
    """Predicts the words of translations.

    Attributes:
        references: the dev translations, as words.
    """

    data_help = (
        "A folder with train.X, train.Y, dev.X and dev.Y, where X and Y are languages (train.en, train.vi), or with "
        "one pair of files, whose last tenth is held out; one tokenised sentence a line. BLEU needs sacrebleu."
    )
    summary = "pairs of sentences, {task.n_source} and {task.n_target} different words"
    description = NetworkTask.description
    keeps = ("source", "target")

    def like(self, *kept: GraphSet) -> tuple[GraphSet, ...]:
        return kept

    def load(self, like: Any, known: Mapping[str, int]) -> None:
        pairs: Any = synthetic_parallel()
        if self.settings.data is not None:
            files = parallel_files(self.settings.data, self.settings.source)
            pairs = [[(a, b) for _, a, b in read_pairs(*both)] for both in files]
        self.kept = graphs_of_pairs(pairs[0], like=like)
        self.take(*(
            chain_pairs(source.reversed(), target)
            for source, target in (self.kept, graphs_of_pairs(pairs[1], like=self.kept))
        ))  # fmt: skip
        self.references: list[list[str]] = [translation for _, translation in pairs[1]]
        source, self.words = (side.vocabularies["word"] for side in self.kept)
        self.n_source, self.n_target, self.boundary = len(source), len(self.words), self.words[BOUNDARY]

    def units(self, batch: GraphBatch) -> int:
        return len(self.network.target_vertices(batch))

    def evaluate(self, handle: vpps.Handle, world: World | None = None) -> dict[str, float]:
        """Return the perplexity and, if sacrebleu is installed, greedy translations' BLEU (Papineni et al. 2002)."""
        found = super().evaluate(handle, world)
        if importlib.util.find_spec("sacrebleu") is not None:
            found["BLEU"] = self.bleu(self.translations(handle, world))
        return found

    def translations(self, handle: vpps.Handle, world: World | None = None) -> list[list[str]]:
        """Translate the dev sentences, in order; `world` as in `evaluate`."""
        batches = self.dev.batches(EVALUATION_BATCH, shuffle=False)
        found = in_turns(lambda batch: self.network.translate(handle, batch, LONGEST), batches, world)
        return [[self.words.words[word] for word in translation] for some in found for translation in some]

    def bleu(self, translations: Iterable[Iterable[str]]) -> float:
        """Return the BLEU of the dev set, 0 to 100, without tokenising the texts again. Needs sacrebleu."""
        import sacrebleu

        found = sacrebleu.corpus_bleu(
            [" ".join(words) for words in translations], [[" ".join(words) for words in self.references]],
            tokenize="none", force=True,
        )  # fmt: skip
        return float(found.score)
