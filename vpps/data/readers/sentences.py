"""Sentences as chains: each word reads the one before it. Text as one stream of words, in windows of one length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vpps.data.graphset import GraphSet
from vpps.data.lines import LinePart, read_lines, words_in
from vpps.data.readers.names import Source, classes_of, some_graphs, words_of
from vpps.errors import DataError

BOUNDARY = "</s>"
"""The word before the first of a sentence and after the last, as in Mikolov's language models."""


def read_tagged(*paths: Source, min_count: int | None = None, like: GraphSet | None = None) -> GraphSet:
    """Sentences of `word|TAG` separated by blanks, one a line: columns `word` and `tag`. Blank lines are skipped.

    The last `|` of a token separates, so a word may have one.

    Args:
        min_count: words that occur less often become unknown, by default those of one occurrence; not beside `like`.
        like: take vocabulary and tags from this set.

    Raises:
        DataError: a file cannot be read, holds no sentence, or a token has no tag or an unknown one; with file and
            line.
    """
    sources, sentences = tagged_lines(*paths)
    return graphs_of_tagged(sentences, min_count=min_count, like=like, sources=sources)


Token = tuple[str, str]
"""A word and its tag."""


def tagged_lines(*paths: Source) -> tuple[list[str], list[list[Token]]]:
    """Where every sentence of some files stands, and its tokens; see `read_tagged`."""
    sources, sentences = read_sentences(paths, "one sentence of word|TAG a line")
    tagged: list[list[Token]] = []
    for source, tokens in zip(sources, sentences, strict=True):
        tagged.append([])
        for place, token in enumerate(tokens, start=1):
            word, bar, tag = token.rpartition("|")
            if not (word and bar and tag):
                raise DataError(f"{source}: expected word|TAG as token {place}, found {token!r}")
            tagged[-1].append((word, tag))
    return sources, tagged


def graphs_of_tagged(
    sentences: Sequence[Sequence[Token]],
    *,
    min_count: int | None = None,
    like: GraphSet | None = None,
    sources: Sequence[str] | None = None,
) -> GraphSet:
    """Sentences of words and their tags as a set: chains, columns `word` and `tag`.

    Args:
        min_count, like: as of `read_tagged`.
        sources: names of the sentences for messages.

    Raises:
        DataError: there is no sentence, or a tag that `like` does not have.
    """
    some_graphs(["sentences"], len(sentences), "at least one sentence")
    names = sources or [f"sentence {k}" for k in range(len(sentences))]
    vocabulary = words_of(([word for word, _ in sentence] for sentence in sentences), "word", min_count, like)
    where = [name for name, sentence in zip(names, sentences, strict=True) for _ in sentence]
    tags, classes = classes_of([tag for sentence in sentences for _, tag in sentence], where, "tag", like)
    words = np.array([vocabulary[word] for sentence in sentences for word, _ in sentence], np.int32)
    sizes = np.array([len(sentence) for sentence in sentences], np.int64)
    return GraphSet(
        sizes, chains(sizes), columns={"word": words, "tag": tags}, kinds=("word",),
        vocabularies={"word": vocabulary}, classes={"tag": classes}, sources=names,
    )  # fmt: skip


def read_text(
    *paths: Source, min_count: int | None = None, targets: bool = True, like: GraphSet | None = None
) -> GraphSet:
    """Sentences of words separated by blanks, one a line; blank lines are skipped.

    A sentence of k words has k + 1 vertices: column `word` is `BOUNDARY` and the words, column `next` the words and
    `BOUNDARY`, which is what a language model predicts from it.

    Args:
        min_count: words that occur less often become unknown, which `<unk>` in the text is already; by default those of
            one occurrence; not beside `like`.
        targets: False leaves out `next` and the boundary: k vertices, for an encoder.
        like: take the vocabulary from this set.

    Raises:
        DataError: a file cannot be read or holds no sentence.
    """
    sources, sentences = read_sentences(paths)
    return graphs_of_text(sentences, min_count=min_count, targets=targets, like=like, sources=sources)


def read_sentences(paths: Sequence[Source], what: str = "one sentence a line") -> tuple[list[str], list[list[str]]]:
    """File and line of every sentence, and its words. Raises DataError where a file cannot be read or none is found."""
    lines = [(f"{path}:{number}", words_in(text)) for path in paths for number, text in read_lines(path)]
    found = [(source, words) for source, words in lines if words]
    some_graphs(paths, len(found), what)
    return [source for source, _ in found], [words for _, words in found]


def read_parallel(
    source: Source, target: Source, *, min_count: int | None = None, like: tuple[GraphSet, GraphSet] | None = None
) -> tuple[GraphSet, GraphSet]:
    """Two texts whose lines translate each other: graph k of one set belongs to graph k of the other.

    The first is for an encoder (`targets=False` of `read_text`), the second for a decoder. Pairs with a blank line are
    left out.

        for batch in target.batches(32):
            sentences = source[batch.indices]

    Raises:
        DataError: a file cannot be read, their numbers of lines differ, or no pair is left.
    """
    lines = read_pairs(source, target)
    sources = [[f"{path}:{n}" for n, _, _ in lines] for path in (source, target)]
    return graphs_of_pairs([(a, b) for _, a, b in lines], min_count=min_count, like=like, sources=sources)


def graphs_of_pairs(
    pairs: Sequence[tuple[Sequence[str], Sequence[str]]],
    *,
    min_count: int | None = None,
    like: tuple[GraphSet, GraphSet] | None = None,
    sources: Sequence[Sequence[str] | None] = (None, None),
) -> tuple[GraphSet, GraphSet]:
    """Pairs of sentences as `read_parallel` makes them two sets."""
    first, second = (
        graphs_of_text(
            [pair[k] for pair in pairs], min_count=min_count, targets=k == 1, like=like and like[k], sources=sources[k]
        )
        for k in range(2)
    )
    return first, second


def read_pairs(source: Source, target: Source) -> list[tuple[int, list[str], list[str]]]:
    """Line number and words of every pair of lines that translate each other; pairs with a blank line are left out.

    Raises:
        DataError: a file cannot be read, their numbers of lines differ, or no pair is left.
    """
    texts = [[(n, words_in(text)) for n, text in read_lines(path)] for path in (source, target)]
    check_parallel(source, len(texts[0]), target, len(texts[1]))
    pairs = [(n, a, b) for (n, a), (_, b) in zip(*texts, strict=True) if a and b]
    some_graphs([source, target], len(pairs), "one sentence a line")
    return pairs


def check_parallel(source: Source, n_source: int, target: Source, n_target: int) -> None:
    """Raises DataError where texts that should translate each other differ in their numbers of lines."""
    if n_source != n_target:
        longer = source if n_source > n_target else target
        alone = min(n_source, n_target) + 1 + (longer.first if isinstance(longer, LinePart) else 0)
        raise DataError(
            f"{longer}:{alone}: the other text has no such line: {source} has {n_source} lines and {target} {n_target}:"
            " parallel text has as many"
        )


def graphs_of_text(
    sentences: Sequence[Sequence[str]],
    *,
    min_count: int | None = None,
    targets: bool = True,
    like: GraphSet | None = None,
    sources: Sequence[str] | None = None,
) -> GraphSet:
    """Sentences that are lists of words, as `read_text` makes them a set.

    Args:
        min_count, targets, like: as there.
        sources: names of the sentences for messages.

    Raises:
        DataError: there is no sentence, or `BOUNDARY` is a word of one that gets targets.
    """
    some_graphs(["sentences"], len(sentences), "at least one sentence")
    if targets:
        _no_boundary(sentences, sources or [f"sentence {k}" for k in range(len(sentences))])
        sentences = [[BOUNDARY, *words] for words in sentences]
    vocabulary = words_of(sentences, "word", min_count, like)
    sizes = np.array([len(words) for words in sentences], np.int64)
    words = np.array([vocabulary[word] for sentence in sentences for word in sentence], np.int32)
    columns, vocabularies = {"word": words}, {"word": vocabulary}
    if targets:
        following = np.roll(words, -1)
        following[sizes.cumsum() - 1] = vocabulary[BOUNDARY]
        columns["next"], vocabularies["next"] = following, vocabulary
    return GraphSet(sizes, chains(sizes), columns=columns, kinds=("word",), vocabularies=vocabularies, sources=sources)


def _no_boundary(sentences: Sequence[Sequence[str]], sources: Sequence[str]) -> None:
    for source, words in zip(sources, sentences, strict=True):
        if BOUNDARY in words:
            raise DataError(f"{source}: {BOUNDARY!r} is the mark of a sentence's end, which readers add: leave it out")


def chains(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N, 1) the child of every vertex is the one before it; -1 at the beginning."""
    places = np.arange(sizes.sum()) - (sizes.cumsum() - sizes).repeat(sizes)
    return (places - 1)[:, None]


def read_stream(
    *paths: Source, steps: int = 64, min_count: int | None = None, like: GraphSet | None = None
) -> GraphSet:
    """Sentences of words separated by blanks, one a line, as one stream; blank lines are skipped. See
    `graphs_of_stream`.

    Raises:
        DataError: a file cannot be read, or holds fewer words than a window.
    """
    _, sentences = read_sentences(paths)
    try:
        return graphs_of_stream(sentences, steps=steps, min_count=min_count, like=like)
    except DataError as error:
        raise DataError(f"{', '.join(map(str, paths))}: {error}") from None


def graphs_of_stream(
    sentences: Sequence[Sequence[str]], *, steps: int = 64, min_count: int | None = None, like: GraphSet | None = None
) -> GraphSet:
    """Windows of `steps` words, one after the other: chains that are all of one length, as Cavs's Fixed-LSTM takes them
    (Xu et al. 2018, section 5).

    The stream is `BOUNDARY` and then every sentence, followed by `BOUNDARY`. Column `word` is the stream, column `next`
    what follows each word there, which may be the first word of the next window. What does not fill a window is left
    out.

    Args:
        steps: words per window.
        min_count, like: as of `read_text`.

    Raises:
        DataError: there are fewer words than a window has, or steps is below 1.
    """
    if steps < 1:
        raise DataError(f"windows of {steps} words: they need at least 1")
    _no_boundary(sentences, [f"sentence {k}" for k in range(len(sentences))])
    stream = [BOUNDARY, *(word for sentence in sentences for word in (*sentence, BOUNDARY))]
    n = (len(stream) - 1) // steps
    if not n:
        raise DataError(f"{len(stream) - 1} words, ends of sentences included, fill no window of {steps}: take fewer")
    vocabulary = words_of([stream], "word", min_count, like)
    numbers = np.array([vocabulary[word] for word in stream[: n * steps + 1]], np.int32)
    return GraphSet(
        np.full(n, steps), np.tile(np.arange(-1, steps - 1), n)[:, None], kinds=("word",),
        columns={"word": numbers[:-1], "next": numbers[1:]}, vocabularies={"word": vocabulary, "next": vocabulary},
    )  # fmt: skip
