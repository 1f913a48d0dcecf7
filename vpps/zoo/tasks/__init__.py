"""Tasks of `vpps-train NAME`: one row per task, with its network, paper, data and settings.

A row combines a class of `kinds.py` (losses, units and scores) with a network of `vpps.zoo`. `files.py` finds the data
files, and stores vocabularies and class names in checkpoints.
"""

from __future__ import annotations

from dataclasses import make_dataclass
from functools import partial
from types import new_class
from typing import Any

from vpps import data, zoo
from vpps.zoo.task import Settings, Task, setting
from vpps.zoo.tasks import files, kinds
from vpps.zoo.tasks.kinds import DataKind

_FILES = "A folder with train.txt and dev.txt, or one file, whose last tenth is held out; one "
_SST = "such as the Stanford Sentiment Treebank."
_TEXT = _FILES + "tokenised sentence a line, such as the Penn Treebank's text."
_TAGS = _FILES + "sentence a line, words as word|TAG separated by blanks, such as WikiNER."

TREES = DataKind(
    data.synthetic_treebank, data.graphs_of_trees, data.read_treebank,
    _FILES + f"bracketed tree a line, labels from 0: {_SST}", limits_words=True,
)  # fmt: skip
TREES_OF_LISTS = TREES._replace(options={"lists": True})
PYRAMIDS = DataKind(
    partial(data.synthetic_opinions, n_train=8000), data.graphs_of_trees, data.read_treebank,
    _FILES + f"bracketed tree a line, labels from 0; only words and the root's label are used: {_SST}",
    options={"lists": True}, derive=data.pyramids_of_trees,
)  # fmt: skip
SENTENCES = DataKind(data.synthetic_text, data.graphs_of_text, data.read_text, _TEXT)
WINDOWS = DataKind(data.synthetic_text, data.graphs_of_stream, data.read_stream, _TEXT)
TAGGED = DataKind(data.synthetic_sentences, data.graphs_of_tagged, data.read_tagged, _TAGS, limits_words=True)
SPELLED = TAGGED._replace(
    synthetic=partial(data.synthetic_sentences, coined=True),
    of=data.SpelledSentences.of,
    read=data.SpelledSentences.read,
)
LATTICES = DataKind(
    data.synthetic_lattices, lambda graphs, **_: graphs, data.read_lattices,
    "A folder with train.txt and dev.txt, sentences as character-word lattices: as ED-Batch's Weibo files.",
    files=files.folder_only, min_count=2,
)  # fmt: skip

HELP = {
    "hidden": "Length of a state (of taggers: in each direction), and of a word vector if there is no --embedding.",
    "embedding": "Length of a word vector.",
    "mlp": "Length of the hidden layer before the output.",
    "characters": "Length of a character vector.",
    "per_child": "A matrix per child: products of words are computed once, at best half of all. One matrix suits GPUs "
    "and few trees.",
    "attention": "Let the decoder look at all states of the encoder.",
    "source": "Ending of the files to translate from.",
    "min_count": "Rarer words of the training data are unknown; 1 suits text with <unk> in their place, as Mikolov's.",
    "root_only": "Train on sentence labels alone, not on every phrase's.",
    "steps": "Words per window.",
    "leaves": "Leaves per tree: 2, 4, 8, ...; Cavs measures trees of 256.",
}
OF_DATA = {"root_only": 0, "steps": 1, "leaves": 2}
"""Settings that do not shape the model, with their minimum values."""


def settings_of(**defaults: Any) -> type[Settings]:
    """Return a class of a task's settings, which become options of its command."""
    own = [
        (name, type(value), setting(
            value, HELP[name], min=OF_DATA.get(name, 1) if type(value) is int else None,
            shapes_model=name not in OF_DATA,
        ))
        for name, value in defaults.items()
    ]  # fmt: skip
    return make_dataclass("Settings", own, bases=(Settings,), frozen=True, kw_only=True)


def row(
    name: str,
    about: str,
    kind: type[kinds.NetworkTask[Any]],
    network: type,
    examples: DataKind | None = None,
    training: dict[str, Any] | None = None,
    **settings: Any,
) -> type[Task[Any]]:
    """Return the class of a task.

    Args:
        about: text after "Train" in the help of the task's command.
        examples: source of the data; None if the kind defines it.
        training: options of the training loop, in addition to those of the kind.
        settings: settings with their defaults.
    """
    own = {
        "__doc__": f"Train {about}.", "name": name, "network_type": network, "settings_type": settings_of(**settings),
        "training": {**kind.training, **(training or {})},
    }  # fmt: skip
    if examples is not None:
        own |= {"data": examples, "data_help": examples.help}
    return new_class(name, (kind,), {}, lambda body: body.update(own))


WORDS: dict[str, Any] = {"hidden": 256, "embedding": 256}
TREE: dict[str, Any] = {"hidden": 256, "min_count": 2, "root_only": False}

TASKS = {task.name: task for task in (
    row("tree-lstm", "a Tree-LSTM for sentiment (Tai, Socher & Manning 2015)",
        kinds.Trees, zoo.TreeLSTMSentiment, TREES, **TREE, embedding=256, per_child=False),
    row("tree-lstm-child-sum",
        "a child-sum Tree-LSTM for sentiment (Tai, Socher & Manning 2015), over trees of any fan-in",
        kinds.Trees, zoo.ChildSumTreeLSTMSentiment, TREES_OF_LISTS, **TREE, embedding=256),
    row("tree-lstm-2type", "a Tree-LSTM whose inner nodes are of two types, drawn 50/50 (ED-Batch's TreeLSTM-2Type)",
        kinds.TwoTypeTrees, zoo.TwoTypeTreeLSTMSentiment, TREES, **TREE, embedding=256, per_child=False),
    row("tree-gru", "a Tree-GRU for sentiment (after Kokkinos & Potamianos 2017)",
        kinds.Trees, zoo.TreeGRUSentiment, TREES, **TREE, embedding=256, per_child=False),
    row("rvnn", "a recursive network for the sentiment of sentences (the VPPS paper's RvNN)",
        kinds.Trees, zoo.RvNNSentiment, TREES, {"lr": 3e-4},  # with few labels it overfits in a few epochs
        hidden=512, min_count=2, root_only=True, embedding=512, per_child=False, mlp=256),
    row("mv-rnn", "a matrix-vector recursive network for sentiment (Socher et al. 2012)",
        kinds.BinaryTrees, zoo.MVRNNSentiment, TREES, {"lr": 1e-3},
        **TREE | {"hidden": 32}),  # a word costs hidden x hidden weights
    row("td-rnn", "a TD-RNN for the sentiment of sentences (VPPS, section IV-E)",
        kinds.Sentences, zoo.TDRNNSentiment, PYRAMIDS,
        {"lr": 1e-4, "clip_norm": 1.0},  # small steps, because each word applies the wide matrix once more
        hidden=512, mlp=256),
    row("td-lstm", "a TD-LSTM for the sentiment of sentences (VPPS, section IV-E)",
        kinds.Sentences, zoo.TDLSTMSentiment, PYRAMIDS, {"lr": 1e-3}, **WORDS, mlp=256),
    row("tree-fc", "Tree-FC (Looks et al. 2017), a layer on complete trees, to tell who wins a knockout tournament",
        kinds.Tournaments, zoo.TreeFC, hidden=256, per_child=False, leaves=16),
    row("bilstm-tagger", "a bidirectional LSTM to find named entities (Huang, Xu & Yu 2015)",
        kinds.Tags, zoo.BiLSTMTagger, TAGGED, **WORDS, mlp=256),
    row("bilstm-char-tagger",
        "a BiLSTM tagger that reads rare words character by character (DyNet's bilstm-tagger-withchar)",
        kinds.SpelledTags, zoo.BiLSTMCharTagger, SPELLED, **WORDS, mlp=256, characters=64),
    row("fixed-lstm", "an LSTM language model on windows of 64 words (Fixed-LSTM of Xu et al. 2018)",
        kinds.NextWords, zoo.LSTMLanguageModel, WINDOWS, **WORDS, min_count=2, steps=64),
    row("var-lstm", "an LSTM language model on sentences (Var-LSTM of Xu et al. 2018)",
        kinds.NextWords, zoo.LSTMLanguageModel, SENTENCES, **WORDS, min_count=2),
    row("nmt", "an LSTM encoder-decoder to translate (Sutskever et al. 2014)",
        kinds.Translation, zoo.EncoderDecoder, training={"epochs": 15}, **WORDS, attention=False, source="en"),
    row("lattice-lstm", "a lattice LSTM for named entities in Chinese (Zhang & Yang 2018)",
        kinds.CharacterTags, zoo.LatticeLSTM, LATTICES, **WORDS),
    row("lattice-gru", "a lattice GRU for named entities in Chinese (Su et al. 2017)",
        kinds.CharacterTags, zoo.LatticeGRU, LATTICES, **WORDS),
)}  # fmt: skip
