"""Taggers and language models: their special features, and their scores' units.

Gradients: `test_against_reference.py`.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import vpps
from tests.zoo.cases import CASES, cross_entropy, values
from vpps.data import SpelledSentences, graphs_of_tagged
from vpps.reference import weights_of
from vpps.zoo import BiLSTMCharTagger, BiLSTMTagger
from vpps.zoo.tasks import TASKS

SENTENCES = [[("the", "O"), ("zab", "I-PER"), ("the", "O"), ("bad", "O")], [("zab", "I-PER")], [("the", "O")]]
SIZES = {"embedding": 6, "hidden": 5, "mlp": 4}


def char_tagger(data: SpelledSentences) -> tuple[vpps.Model, BiLSTMCharTagger]:
    model = vpps.Model(seed=7)
    words, characters = data.sentences.vocabularies["word"], data.spellings.vocabularies["character"]
    return model, BiLSTMCharTagger(model, len(words), len(characters), 2, characters=3, **SIZES)


@pytest.mark.host
class TestTaggers:
    def test_loss_is_the_cross_entropy_of_the_logits_of_every_word(self) -> None:
        data, model, graph = graphs_of_tagged(SENTENCES), vpps.Model(seed=7), vpps.Graph()
        network = BiLSTMTagger(model, 3, 2, **SIZES)
        logits, loss = values(model, graph, network.logits(graph, data[:]), network.loss(graph, data[:]))
        assert loss == pytest.approx(cross_entropy(logits, data[:]["tag"]).sum(), rel=1e-12)

    def test_rare_words_are_read_in_both_directions(self) -> None:
        data, graph = SpelledSentences.of(SENTENCES, min_count=3), vpps.Graph()
        model, network = char_tagger(data)
        spellings = data[:].spellings
        own = [graph.lookup(network.characters, int(k)) for k in spellings["character"][: spellings.offsets[1]]]
        vectors, forward, backward = values(
            model, graph, network.word_vectors(graph, data[:]), network.spelling.forward.sequence(graph, own)[-1],
            network.spelling.backward.sequence(graph, own[::-1])[-1],
        )  # fmt: skip
        for k in (1, 4):  # zab
            np.testing.assert_allclose(vectors[k], np.concatenate([forward, backward]), rtol=1e-12)

    def test_frequent_words_have_their_row_of_the_table(self) -> None:
        data = SpelledSentences.of(SENTENCES, min_count=2)
        model, network = char_tagger(data)
        for batch in (data[:], data[[2]]):  # with and without a rare word
            graph = vpps.Graph()
            (vectors,) = values(model, graph, network.word_vectors(graph, batch))
            frequent = ~batch.rare
            np.testing.assert_array_equal(vectors[frequent], weights_of(model)["words"][batch["word"][frequent]])

    def test_a_word_vector_that_two_directions_cannot_share_is_refused(self) -> None:
        with pytest.raises(vpps.VppsError, match=r"embedding=7: choose an even length"):
            BiLSTMCharTagger(vpps.Model(), 3, 3, 2, embedding=7)

    @pytest.mark.parametrize("name", ["bilstm-tagger", "bilstm-char-tagger"])
    def test_tasks_are_made_again_from_their_state(self, name: str) -> None:
        kind, task = TASKS[name], CASES[name].make(limit=30, seed=1)
        again = kind(kind.settings_type(limit=9, **CASES[name].settings), task.state())
        assert again.description.split("sentences, ")[1] == task.description.split("sentences, ")[1]
        assert again.tags == task.tags
        np.testing.assert_array_equal(again.train[:9]["word"], task.train[:9]["word"])

    def test_perfect_outputs_have_perfect_scores(self) -> None:
        task = CASES["bilstm-tagger"].make(limit=30)
        batch = task.dev[:20]
        perfect = np.eye(len(task.tags), dtype=np.float32)[batch["tag"]]
        assert task.scores([(batch, perfect)]) == {"dev entity F1": 1.0, "dev accuracy": 1.0}
        assert task.scores([(batch, np.roll(perfect, 1, axis=1))])["dev entity F1"] == 0


@pytest.mark.host
class TestPerplexity:
    def test_losses_are_the_cross_entropy_of_the_logits(self) -> None:
        task, graph = CASES["var-lstm"].make(), vpps.Graph()
        batch = task.train[:2]
        logits, losses = values(task.model, graph, task.network.logits(graph, batch), task.outputs(graph, batch))
        np.testing.assert_allclose(losses, cross_entropy(logits, batch["next"]), rtol=1e-12)

    def test_is_over_all_words(self) -> None:
        task = CASES["fixed-lstm"].make()
        batches = [task.dev[:2], task.dev[2:3]]
        losses = [np.full(18, 1.0, np.float32), np.full(9, 4.0, np.float32)]
        assert task.scores(zip(batches, losses, strict=True)) == {"dev perplexity": pytest.approx(math.exp(2))}

    @pytest.mark.parametrize("name", ["var-lstm", "nmt"])
    def test_of_a_model_that_has_diverged_is_infinite(self, name: str) -> None:
        task = CASES[name].make()
        losses = np.full(task.units(task.dev[:2]), 1e4, np.float32)
        assert task.scores([(task.dev[:2], losses)]) == {"dev perplexity": math.inf}


@pytest.mark.cpu
@pytest.mark.parametrize("name", ["fixed-lstm", "var-lstm"])
def test_learns_agreement(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Perplexity falls below that of the best word-pair model, which ignores subjects."""
    monkeypatch.setenv("VPPS_VERIFY", "0")  # other tests verify these cells' scripts
    task = CASES[name].make(limit=None, hidden=64, embedding=32)
    pairs = np.full((task.n_words, task.n_words), 1e-3)
    np.add.at(pairs, (task.train[:]["word"], task.train[:]["next"]), 1)
    chances = pairs / pairs.sum(axis=1, keepdims=True)
    of_pairs = math.exp(-np.log(chances[task.dev[:]["word"], task.dev[:]["next"]]).mean())
    with vpps.Handle(task.model, vpps.Adam(lr=1e-2), clip_norm=5.0) as handle:
        for epoch in range(4):
            for batch in task.train.batches(16, epoch=epoch):
                graph = vpps.Graph()
                handle.fb(graph, task.loss(graph, batch) * (1 / len(batch)))
        found = task.evaluate(handle)["dev perplexity"]
    assert found < 0.97 * of_pairs
