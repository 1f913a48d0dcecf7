"""Synthetic data is reproducible, follows its rules, and is too hard for the wrong kind of model."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vpps.data as vd
from vpps.data import GraphSet, Vocabulary, synthetic_treebank, tournaments
from vpps.data import synthetic as rules
from vpps.data.synthetic import ENDINGS, N_CLASSES, NAMES, NOUNS, Phrase, compose, longest_words, translate, word_phrase
from vpps.data.treebank import Tree, Treebank, parse_tree
from vpps.errors import DataError

pytestmark = pytest.mark.host


def shown(examples: Any) -> list[Any]:
    """Return the comparable parts of examples."""
    if isinstance(examples, GraphSet):
        return [column.tolist() for column in examples.arrays.all_columns().values()]
    return [str(tree) if isinstance(tree, Tree) else tree for tree in examples]


def both_sets(found: Any) -> Any:
    return (found.train, found.dev) if isinstance(found, Treebank) else found


GENERATORS = [getattr(vd, f"synthetic_{kind}") for kind in "treebank opinions sentences text parallel lattices".split()]


@pytest.mark.parametrize(
    "generate",
    [*GENERATORS, lambda n, m, seed=1: (tournaments(n, 8, seed=seed), tournaments(m, 8, seed=seed + 9))],
)
def test_equal_seeds_give_equal_examples_as_many_as_asked(generate: Callable[..., Any]) -> None:
    first, again, other = (both_sets(generate(20, 5, seed=seed)) for seed in (5, 5, 6))
    assert [len(examples) for examples in first] == [20, 5]
    assert list(map(shown, first)) == list(map(shown, again))
    assert shown(first[0]) != shown(other[0])


def labelled(tree: Tree) -> Tree:
    """Return the same words in the same brackets, labelled by the rules."""
    tokens = iter(tree.tokens)
    phrases: list[Phrase] = []
    for children in tree.child_lists():
        phrases.append(compose(*(phrases[k] for k in children)) if children else word_phrase(next(tokens)))
    return parse_tree(phrases[-1][0])


@pytest.fixture(scope="module")
def bank() -> Treebank:
    return synthetic_treebank()


class TestTreebank:
    @pytest.mark.parametrize(
        "phrase, labels",
        [
            ("(0 film)", [2]), ("(0 superb)", [4]), ("(0 (0 not) (0 good))", [2, 3, 1]),
            ("(0 (0 not) (0 terrible))", [2, 0, 3]), ("(0 (0 not) (0 film))", [2, 2, 2]),
            ("(0 (0 very) (0 bad))", [2, 1, 0]), ("(0 (0 slightly) (0 awful))", [2, 0, 1]),
            ("(0 (0 good) (0 bad))", [3, 1, 2]), ("(0 (0 great) (0 superb))", [4, 4, 4]),
            ("(0 (0 not) (0 (0 very) (0 good)))", [2, 2, 3, 4, 1]),
            ("(0 (0 dull) (0 (0 but) (0 funny)))", [1, 2, 3, 3, 3]),
            ("(0 (0 not) (0 (0 good) (0 film)))", [2, 3, 2, 3, 1]),
            ("(0 (0 (0 not) (0 good)) (0 great))", [2, 3, 1, 4, 3]),  # the same words in other brackets:
            ("(0 (0 not) (0 (0 good) (0 great)))", [2, 3, 4, 4, 1]),
        ],
    )  # fmt: skip
    def test_rules_give_the_label_of_every_phrase(self, phrase: str, labels: list[int]) -> None:
        assert labelled(parse_tree(phrase)).labels.tolist() == labels

    def test_every_tree_is_labelled_by_the_rules(self, bank: Treebank) -> None:
        assert all(str(labelled(tree)) == str(tree) for tree in bank.train[:200] + bank.dev)

    def test_trees_never_change_between_versions(self) -> None:
        # Figures in bench/results and the quickstart's expected losses depend on these values.
        assert (
            str(synthetic_treebank(1, 0).train[0])
            == "(0 (0 (2 plays) (0 awful)) (0 (0 (2 extremely) (0 (2 .) (0 awful))) (2 about)))"
        )

    def test_sizes_labels_and_dev_trees_are_as_promised(self, bank: Treebank) -> None:
        assert (len(bank.train), len(bank.dev)) == (2000, 400)
        assert {len(tree.tokens) for tree in bank.train} == set(rules.TREE_LENGTHS)
        assert all(len(tree) == 2 * len(tree.tokens) - 1 for tree in bank.train)
        counts = Counter(int(tree.labels[-1]) for tree in bank.train)
        assert set(counts) == set(range(N_CLASSES))
        assert max(counts.values()) / len(bank.train) < 0.25
        seen = set(map(str, bank.train))
        assert not any(str(tree) in seen for tree in bank.dev)

    def test_counting_words_does_not_suffice(self, bank: Treebank) -> None:
        vocabulary = Vocabulary.from_sentences(tree.tokens for tree in bank.train)

        def counts(trees: list[Tree]) -> NDArray[np.float64]:
            bags = [np.bincount([vocabulary[w] for w in tree.tokens], minlength=len(vocabulary)) for tree in trees]
            return np.array(bags, np.float64)

        def roots(trees: list[Tree]) -> NDArray[np.int64]:
            return np.array([tree.labels[-1] for tree in trees], np.int64)

        # Ridge regression on one-hot labels, with the best of a range of penalties.
        x, target = counts(bank.train), np.eye(N_CLASSES)[roots(bank.train)]
        accuracies = []
        for penalty in (1.0, 10.0, 100.0, 1000.0):
            weights = np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ target)
            accuracies.append(np.mean((counts(bank.dev) @ weights).argmax(axis=1) == roots(bank.dev)))
        assert 0.25 < max(accuracies) < 0.45


class TestOpinions:
    def test_words_say_the_tree(self) -> None:
        for tree in vd.synthetic_opinions(300, 1).train:
            tokens = iter(tree.tokens)
            units = [f"(0 (0 {t}) (0 {next(tokens)}))" if t in rules.SCOPING else f"(0 {t})" for t in tokens]
            text = units[0]
            for unit in units[1:]:
                text = f"(0 {text} {unit})"
            expected = labelled(parse_tree(text))
            assert tree.labels.tolist() == expected.labels.tolist()
            assert tree.children.tolist() == expected.children.tolist()

    def test_all_labels_and_lengths_occur(self) -> None:
        sentences = vd.synthetic_opinions(500, 10, seed=3).train
        shares = Counter(int(tree.labels[-1]) for tree in sentences)
        assert set(shares) == set(range(N_CLASSES))
        assert max(shares.values()) < 0.4 * 500
        lengths = [len(tree.tokens) for tree in sentences]
        assert 2 <= min(lengths) <= max(lengths) <= 12


def names_in(sentence: list[tuple[str, str]]) -> list[tuple[int, int, str]]:
    """Return (first, end, type) for each run of one tag other than O."""
    found, first = [], 0
    for k in range(1, len(sentence) + 1):
        if k == len(sentence) or sentence[k][1] != sentence[first][1]:
            if sentence[first][1] != "O":
                found.append((first, k, sentence[first][1][2:]))
            first = k
    return found


class TestSentences:
    def test_every_name_has_the_type_that_its_cues_tell(self) -> None:
        for sentence in vd.synthetic_sentences(500, 1, coined=True)[0]:
            assert 6 <= len(sentence) <= 31
            words = [word for word, _ in sentence]
            for first, behind, kind in names_in(sentence):
                after = words[behind] if behind < len(words) else ""
                before = words[first - 1] if first else ""
                if words[first] not in NAMES:
                    assert words[first].endswith(ENDINGS[kind])
                elif after in rules.COMPANIES:
                    assert kind == "ORG"
                elif before in rules.TITLES or after in rules.SPEECH:
                    assert kind == "PER"
                else:
                    assert kind == "LOC"
                    assert {before, *words[max(0, first - 3) : first - 2]} & set(rules.PLACES)

    def test_neither_the_word_nor_those_before_it_tell_the_tag(self) -> None:
        by_word, by_left = defaultdict(Counter), defaultdict(Counter)
        for sentence in vd.synthetic_sentences()[0]:
            for k, (word, tag) in enumerate(sentence):
                if tag != "O":
                    by_word[word][tag] += 1
                    by_left[tuple(w for w, _ in sentence[max(0, k - 3) : k])][tag] += 1
        assert all(max(tags.values()) < 0.6 * tags.total() for tags in by_word.values())
        seen_often = [tags for tags in by_left.values() if tags.total() > 20]
        assert any(max(tags.values()) < 0.75 * tags.total() for tags in seen_often)

    def test_coined_names_are_rare(self) -> None:
        counts = Counter(word for sentence in vd.synthetic_sentences(coined=True)[0] for word, _ in sentence)
        coined = [word for word in counts if any(map(word.endswith, ENDINGS.values())) and word not in NAMES]
        assert len(coined) > 1000
        assert sum(counts[word] < 5 for word in coined) > 0.99 * len(coined)
        assert all(count >= 5 for word, count in counts.items() if word not in coined)


class TestText:
    def test_every_verb_has_the_number_of_its_subject(self) -> None:
        train, dev = vd.synthetic_text(300, 20)
        far = 0  # verbs whose nearest noun differs in number
        for sentence in train + dev:
            open_phrases: list[bool] = []  # True for plural; one for each subject still without a verb
            nearest = False
            subject = True  # True if the next noun is a subject
            for word in sentence:
                if word in rules.DETERMINERS[0] or word in rules.DETERMINERS[1]:
                    plural = word in rules.DETERMINERS[1]
                elif word.removesuffix("s") in NOUNS:
                    assert word.endswith("s") == plural
                    nearest = plural
                    if subject:
                        open_phrases.append(plural)
                elif word == "that":
                    subject = True
                elif word in ("near", "behind", "beside", "with"):
                    subject = False
                elif word.removesuffix("s") in (*rules.VERBS, *rules.TRANSITIVE):
                    number = open_phrases.pop()
                    assert word.endswith("s") != number, " ".join(sentence)
                    assert (word.removesuffix("s") in rules.VERBS) == (not open_phrases)
                    far += number != nearest
            assert not open_phrases
        assert far > 50

    def test_lengths_and_adverbs(self) -> None:
        train, _ = vd.synthetic_text()
        assert all(3 <= len(sentence) <= 21 for sentence in train)
        assert any(sentence[-1] in rules.ADVERBS for sentence in train)

    def test_translation_agrees_with_its_nouns(self) -> None:
        assert translate(["this", "old", "author"]) == ["rohtuao", "dloo", "sihto"]
        assert translate("these old critics that every tall actor admires sleep".split()) == (
            "peels serimda rotcao llato yreveo taht citirce dloe esehte".split()
        )
        train, dev = vd.synthetic_parallel(20, 5)
        assert all(target == translate(source) and len(source) == len(target) for source, target in train + dev)
        assert any(word.removesuffix("s") in NOUNS for word in train[0][0])


LEXICON = {"ab": 0, "abc": 1, "bc": 2}


class TestLattices:
    def test_words_that_end_somewhere_come_longest_first(self) -> None:
        assert longest_words("vabcb", LEXICON) == [[], [], ["ab"], ["abc", "bc"], []]

    @pytest.mark.parametrize(
        "sentence, tags",
        [("abc", [0, 1, 2]), ("vabc", [0, 0, 2, 3]), ("vbc", [0, 0, 1]), ("aavaab", [0, 0, 0, 0, 0, 1])],
    )
    def test_tag_is_the_category_of_the_longest_word_turned_on_by_a_mark(self, sentence: str, tags: list[int]) -> None:
        words = longest_words(sentence, LEXICON)
        assert [rules.tag_of(sentence, end, some, LEXICON) for end, some in enumerate(words, start=1)] == tags

    def test_edges_of_a_word_hold_it_between_the_characters_that_spell_it(self) -> None:
        train, dev = vd.synthetic_lattices(60, 20)
        assert train.vocabularies["word"].words == dev.vocabularies["word"].words
        characters, words = (train.vocabularies[name].words for name in ("character", "word"))
        for graph in range(60):
            batch = train[graph]
            offsets, indices = batch.children
            before, text = -1, ""
            place_of = {-1: 0}  # number of characters before a reader of this vertex
            for vertex in range(batch.n_vertices):
                children = indices[offsets[vertex] : offsets[vertex + 1]].tolist()
                if batch["word"][vertex] >= 0:
                    assert len(children) == 1
                    continue
                text += characters[batch["character"][vertex]]
                assert children[0] == before
                for word in children[1:]:
                    (start,) = indices[offsets[word] : offsets[word + 1]].tolist()
                    assert text[place_of[start] :] == words[batch["word"][word]]
                before, place_of[vertex] = vertex, len(text)
        tags = train[:]["tag"]
        counts = np.bincount(tags[tags >= 0], minlength=rules.N_TAGS)
        assert counts.min() > 0.05 * counts.sum()
        assert train.stat().fan_in.max >= 3  # words that end at the same character


WINS = {("rock", "scissors"), ("scissors", "paper"), ("paper", "rock")}


class TestTournaments:
    @pytest.mark.parametrize("leaves", [2, 4, 32, 256])
    def test_the_label_is_the_winner(self, leaves: int) -> None:
        trees = tournaments(50, leaves)
        names = trees.classes["label"]
        for k in range(50):
            tree = trees[k]
            plays: list[str] = []
            for word, (left, right) in zip(tree["word"].tolist(), tree.children.tolist(), strict=True):
                if word >= 0:
                    plays.append(names[word % 3])
                else:
                    first, second = plays[left], plays[right]
                    plays.append(second if (second, first) in WINS else first)
            assert tree.kind.tolist() == [0] * leaves + [1] * (leaves - 1)
            assert tree.levels[-1] == np.log2(leaves)
            assert tree.roots.tolist() == [2 * leaves - 2]
            assert names[tree["label"][0]] == plays[-1]

    def test_every_play_wins_as_often(self) -> None:
        assert np.bincount(tournaments(3000, 8)[:]["label"]).min() > 900

    @pytest.mark.parametrize("leaves", [0, 1, 3, 12])
    def test_other_numbers_of_leaves_are_refused(self, leaves: int) -> None:
        with pytest.raises(DataError, match=f"a complete binary tree has 2, 4, 8, ... leaves, not {leaves}"):
            tournaments(5, leaves)

    @pytest.mark.parametrize("n, complaint", [(0, "0 trees of 30 words"), (2**31, "fewer than 2\\*\\*31 vertices")])
    def test_no_trees_and_too_many_are_refused(self, n: int, complaint: str) -> None:
        with pytest.raises(DataError, match=complaint):
            tournaments(n, 4)
