"""Translation: greedy decoding, the files of two languages, BLEU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import vpps
from tests.zoo.cases import CASES
from vpps.data import GraphSet, chain_pairs, graphs_of_text
from vpps.data.lines import read_lines
from vpps.errors import DataError
from vpps.reference import Reference, weights_of
from vpps.zoo import EncoderDecoder
from vpps.zoo.tasks.files import parallel_files

BOUNDARY = "</s>"
attention = pytest.mark.parametrize("attention", [False, True], ids=["plain", "attention"])


def copies(n: int, seed: int) -> list[tuple[list[str], list[str]]]:
    """Return sentences of 1 to 5 letters, and the same sentences backwards in capitals."""
    rng = np.random.default_rng(seed)
    sentences = [["abcdef"[k] for k in rng.integers(0, 6, rng.integers(1, 6))] for _ in range(n)]
    return [(words, [word.upper() for word in reversed(words)]) for words in sentences]


def sets_of(pairs: list[tuple[list[str], list[str]]]) -> tuple[GraphSet, GraphSet]:
    source = graphs_of_text([a for a, _ in pairs], min_count=1, targets=False)
    return source, graphs_of_text([b for _, b in pairs], min_count=1)


def network_for(source: GraphSet, target: GraphSet, size: int, attention: bool) -> tuple[vpps.Model, EncoderDecoder]:
    model = vpps.Model(seed=2)
    words = target.vocabularies["word"]
    n_source = len(source.vocabularies["word"])
    return model, EncoderDecoder(
        model, n_source, len(words), words[BOUNDARY], embedding=size, hidden=size, attention=attention
    )


@pytest.mark.cpu
@attention
def test_learns_to_reverse_and_decodes_it(attention: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VPPS_VERIFY", "0")  # other tests verify these cells' scripts
    source, target = sets_of(copies(1200, seed=1))
    model, network = network_for(source, target, 48, attention)
    pairs = chain_pairs(source, target)
    train = pairs.subset(slice(1100))
    with vpps.Handle(model, vpps.Adam(lr=1e-2), clip_norm=5.0) as handle:
        for epoch in range(12):
            for batch in train.batches(16, epoch=epoch):
                graph = vpps.Graph()
                handle.fb(graph, network.loss(graph, batch) * (1 / len(batch)))
        alone = chain_pairs(source.subset(slice(1100, None)))  # without translations: a user's new text
        translations = network.translate(handle, alone[:], max_length=8)
    words = target.vocabularies["word"].words
    expected = [b for _, b in copies(1200, seed=1)[1100:]]
    right = [[words[k] for k in found] == wanted for found, wanted in zip(translations, expected, strict=True)]
    assert np.mean(right) >= 0.95


@pytest.mark.cpu
@attention
def test_greedy_decoding_takes_the_best_word_after_its_own(attention: bool) -> None:
    """Each word is the best one from a decoder that receives the words found before, as in teacher forcing."""
    source, target = sets_of(copies(12, seed=3))
    model, network = network_for(source, target, 10, attention)
    with vpps.Handle(model) as handle:
        found = network.translate(handle, chain_pairs(source.reversed(), target)[:], max_length=6)
    words = target.vocabularies["word"].words
    texts = [[words[k] for k in translation] for translation in found]
    some = [k for k, text in enumerate(texts) if text]
    assert some
    own = graphs_of_text([texts[k] for k in some], like=target)
    batch, graph = chain_pairs(source.reversed().subset(some), own)[:], vpps.Graph()
    logits = network.logits(graph, batch)
    reference = Reference(graph, weights_of(model))
    best = [int(np.argmax(reference.value(x))) for x in logits]
    following = batch["next"][network.target_vertices(batch)]
    for k, end in zip(some, np.cumsum(own.sizes), strict=True):
        length = len(texts[k])
        begin = end - length - 1
        assert best[begin : begin + length] == following[begin : begin + length].tolist()
        assert length == 6 or best[end - 1] == network.boundary


@pytest.mark.host
def test_batch_that_is_not_of_pairs_is_refused() -> None:
    source, target = sets_of(copies(3, seed=1))
    _, network = network_for(source, target, 4, attention=False)
    with pytest.raises(DataError, match=r"from a set that vpps\.data\.chain_pairs made"):
        network.loss(vpps.Graph(), target[:])


def write(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (folder / name.replace("_", ".")).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.host
class TestFiles:
    def test_train_and_dev_of_both_languages(self, tmp_path: Path) -> None:
        write(tmp_path, train_en="a\n", train_vi="x\n", dev_en="a\n", dev_vi="x\n", README_md="")
        train, dev = parallel_files(tmp_path, "vi")
        assert [Path(path).name for path in (*train, *dev)] == ["train.vi", "train.en", "dev.vi", "dev.en"]

    def test_one_pair_gives_its_last_tenth(self, tmp_path: Path) -> None:
        lines = "".join(f"a{k}\n" for k in range(20))
        write(tmp_path, talks_en=lines, talks_vi=lines.replace("a", "x"))
        task = CASES["nmt"].make(tmp_path)
        assert (len(task.train), len(task.dev)) == (18, 2)
        assert task.references == [["x18"], ["x19"]]

    def test_files_of_one_pair_that_differ_in_length_are_refused_with_their_lengths(self, tmp_path: Path) -> None:
        write(tmp_path, talks_en="a\n" * 100, talks_vi="x\n" * 101)
        with pytest.raises(DataError, match=r"talks\.en has 100 lines and .*talks\.vi 101: parallel texts have equal"):
            parallel_files(tmp_path, "en")

    def test_one_pair_is_cut_at_one_line_wherever_blank_ones_are(self, tmp_path: Path) -> None:
        write(tmp_path, talks_en="a\n" * 30 + "\n" * 10, talks_vi="x\n" * 40)
        train, dev = parallel_files(tmp_path, "en")
        assert [(len(list(read_lines(a))), len(list(read_lines(b)))) for a, b in (train, dev)] == [(27, 27), (13, 13)]

    def test_no_pair_is_an_error_that_names_what_there_is(self, tmp_path: Path) -> None:
        write(tmp_path, talks_de="a\n", talks_vi="x\n")
        with pytest.raises(DataError, match=r"found talks\.de, talks\.vi; set --source to the extension"):
            parallel_files(tmp_path, "en")
        with pytest.raises(DataError, match="expected a folder with a file per language"):
            parallel_files(tmp_path / "talks.de", "en")


@pytest.mark.host
def test_bleu_is_of_words_as_they_are_written() -> None:
    pytest.importorskip("sacrebleu", reason="computes BLEU")
    task = CASES["nmt"].make()
    assert task.bleu(task.references) == pytest.approx(100)
    assert task.bleu([["no", "such", "words"]] * len(task.references)) < 1
