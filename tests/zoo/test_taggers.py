"""Taggers: what is particular to them. Gradients: `test_against_reference.py`."""

from __future__ import annotations

import numpy as np
import pytest

import vpps
from vpps.data import SpelledSentences, graphs_of_tagged
from vpps.reference import Reference, weights_of
from vpps.zoo import BiLSTMCharTagger, BiLSTMTagger
from vpps.zoo.tasks.tagging import BiLSTMCharTaggerTask, BiLSTMTaggerTask, CharTaggerSettings, TaggerSettings

pytestmark = pytest.mark.host

SENTENCES = [[("the", "O"), ("zab", "I-PER"), ("the", "O"), ("bad", "O")], [("zab", "I-PER")], [("the", "O")]]
SIZES = {"embedding": 6, "hidden": 5, "mlp": 4}


def char_tagger(data: SpelledSentences) -> tuple[vpps.Model, BiLSTMCharTagger]:
    model = vpps.Model(seed=7)
    words, characters = data.sentences.vocabularies["word"], data.spellings.vocabularies["character"]
    return model, BiLSTMCharTagger(model, len(words), len(characters), 2, characters=3, **SIZES)


def test_loss_is_the_cross_entropy_of_the_logits_of_every_word() -> None:
    data = graphs_of_tagged(SENTENCES)
    model = vpps.Model(seed=7)
    network = BiLSTMTagger(model, 3, 2, **SIZES)
    graph = vpps.Graph()
    logits, loss = network.logits(graph, data[:]), network.loss(graph, data[:])
    reference = Reference(graph, weights_of(model))
    scores = np.array([reference.value(x) for x in logits])
    losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(6), data[:]["tag"]]
    assert reference.value(loss) == pytest.approx(losses.sum(), rel=1e-12)


def test_rare_words_are_read_in_both_directions() -> None:
    data = SpelledSentences.of(SENTENCES, min_count=3)
    model, network = char_tagger(data)
    graph = vpps.Graph()
    vectors = network.word_vectors(graph, data[:])
    spellings = data[:].spellings
    own = [graph.lookup(network.characters, int(k)) for k in spellings["character"][: spellings.offsets[1]]]
    forward = network.spelling.forward.sequence(graph, own)[-1]
    backward = network.spelling.backward.sequence(graph, own[::-1])[-1]
    reference = Reference(graph, weights_of(model))
    expected = np.concatenate([reference.value(forward), reference.value(backward)])
    for k in (1, 4):  # zab
        np.testing.assert_allclose(reference.value(vectors[k]), expected, rtol=1e-12)


def test_frequent_words_have_their_row_of_the_table() -> None:
    data = SpelledSentences.of(SENTENCES, min_count=2)
    model, network = char_tagger(data)
    for batch in (data[:], data[[2]]):  # with and without a rare word
        graph = vpps.Graph()
        vectors = network.word_vectors(graph, batch)
        reference = Reference(graph, weights_of(model))
        table = weights_of(model)["words"]
        for k in np.flatnonzero(~batch.rare):
            np.testing.assert_array_equal(reference.value(vectors[int(k)]), table[batch["word"][k]])


def test_a_word_vector_that_two_directions_cannot_share_is_refused() -> None:
    with pytest.raises(vpps.VppsError, match=r"embedding=7: choose an even length"):
        BiLSTMCharTagger(vpps.Model(), 3, 3, 2, embedding=7)


def test_tasks_are_made_again_from_their_state() -> None:
    for kind, settings in (
        (BiLSTMTaggerTask, TaggerSettings(limit=30, **SIZES)),
        (BiLSTMCharTaggerTask, CharTaggerSettings(limit=30, **SIZES)),
    ):
        task = kind(settings)
        again = kind(type(settings)(limit=9, **SIZES), task.state())
        assert again.description.split("sentences, ")[1] == task.description.split("sentences, ")[1]
        assert again.tags == task.tags
        np.testing.assert_array_equal(again.train[:9]["word"], task.train[:9]["word"])


def test_perfect_outputs_have_perfect_scores() -> None:
    task = BiLSTMTaggerTask(TaggerSettings(limit=30, **SIZES))
    batch = task.dev[:20]
    perfect = np.eye(len(task.tags), dtype=np.float32)[batch["tag"]]
    assert task.scores([(batch, perfect)]) == {"dev entity F1": 1.0, "dev accuracy": 1.0}
    assert task.scores([(batch, np.roll(perfect, 1, axis=1))])["dev entity F1"] == 0
