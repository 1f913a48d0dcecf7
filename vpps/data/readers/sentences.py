"""Reads sentences as chains, whose words each read the previous word, and text as fixed-length windows of a stream."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vpps.data.graphset import GraphSet
from vpps.data.lines import LinePart, read_lines, words_in
from vpps.data.readers.names import Source, classes_of, some_graphs, words_of
from vpps.errors import DataError

BOUNDARY = "</s>"
"""The mark before the first and after the last word of a sentence, as in Mikolov's language models."""


def read_tagged(*paths: Source, min_count: int | None = None, like: GraphSet | None = None) -> GraphSet:
    """Reads sentences of space-separated `word|TAG`, one sentence per line; skips blank lines.

    The columns are `word` and `tag`. The last `|` of a token is the separator, so words may contain `|`.

    Args:
        min_count: words that occur less often become unknown; the default is 2. Not allowed with `like`.
        like: take vocabulary and tags from this set.

    Raises:
        DataError: a file cannot be read or holds no sentence, or a token's tag is missing or unknown.
    """
    sources, sentences = tagged_lines(*paths)
    return graphs_of_tagged(sentences, min_count=min_count, like=like, sources=sources)


Token = tuple[str, str]
"""A word and its tag."""


def tagged_lines(*paths: Source) -> tuple[list[str], list[list[Token]]]:
    """Returns the file and line of every sentence, and its tokens; see `read_tagged`."""
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
    """Turns tagged sentences into a set of chains with the columns `word` and `tag`.

    Args:
        min_count, like: see `read_tagged`.
        sources: names of the sentences in error messages.

    Raises:
        DataError: there is no sentence, or `like` lacks a tag.
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
    """Reads sentences of space-separated words, one sentence per line; skips blank lines.

    A sentence of k words has k + 1 vertices. Column `word` holds `BOUNDARY`, then the words. Column `next` holds the
    words, then `BOUNDARY`: the targets of a language model.

    Args:
        min_count: words that occur less often become unknown, like `<unk>` in the text; the default is 2. Not allowed
            with `like`.
        targets: False leaves out `next` and the boundary; an encoder needs only the k words.
        like: take the vocabulary from this set.

    Raises:
        DataError: a file cannot be read or holds no sentence.
    """
    sources, sentences = read_sentences(paths)
    return graphs_of_text(sentences, min_count=min_count, targets=targets, like=like, sources=sources)


def read_sentences(paths: Sequence[Source], what: str = "one sentence a line") -> tuple[list[str], list[list[str]]]:
    """Returns every sentence's file and line, and its words. Raises DataError for unreadable files or no sentence."""
    lines = [(f"{path}:{number}", words_in(text)) for path in paths for number, text in read_lines(path)]
    found = [(source, words) for source, words in lines if words]
    some_graphs(paths, len(found), what)
    return [source for source, _ in found], [words for _, words in found]


def read_parallel(
    source: Source, target: Source, *, min_count: int | None = None, like: tuple[GraphSet, GraphSet] | None = None
) -> tuple[GraphSet, GraphSet]:
    """Reads a text and its line-by-line translation; graph k of one set corresponds to graph k of the other.

    The first set is for an encoder (`read_text` with `targets=False`), the second for a decoder. Pairs with a blank
    line are skipped.

        for batch in target.batches(32):
            sentences = source[batch.indices]

    Raises:
        DataError: a file cannot be read, the files differ in length, or no pair is left.
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
    """Turns pairs of sentences into two sets; see `read_parallel`."""
    first, second = (
        graphs_of_text(
            [pair[k] for pair in pairs], min_count=min_count, targets=k == 1, like=like and like[k], sources=sources[k]
        )
        for k in range(2)
    )
    return first, second


def read_pairs(source: Source, target: Source) -> list[tuple[int, list[str], list[str]]]:
    """Returns the line number and the words of every pair of lines; skips pairs with a blank line.

    Raises:
        DataError: a file cannot be read, the files differ in length, or no pair is left.
    """
    texts = [[(n, words_in(text)) for n, text in read_lines(path)] for path in (source, target)]
    check_parallel(source, len(texts[0]), target, len(texts[1]))
    pairs = [(n, a, b) for (n, a), (_, b) in zip(*texts, strict=True) if a and b]
    some_graphs([source, target], len(pairs), "one sentence a line")
    return pairs


def check_parallel(source: Source, n_source: int, target: Source, n_target: int) -> None:
    """Raises DataError if two parallel texts have different numbers of lines."""
    if n_source != n_target:
        longer = source if n_source > n_target else target
        alone = min(n_source, n_target) + 1 + (longer.first if isinstance(longer, LinePart) else 0)
        raise DataError(
            f"{longer}:{alone}: the other text has no such line: {source} has {n_source} lines and {target} {n_target}:"
            " parallel texts have equal numbers of lines"
        )


def graphs_of_text(
    sentences: Sequence[Sequence[str]],
    *,
    min_count: int | None = None,
    targets: bool = True,
    like: GraphSet | None = None,
    sources: Sequence[str] | None = None,
) -> GraphSet:
    """Turns sentences, given as lists of words, into a set; see `read_text`.

    Args:
        min_count, targets, like: see `read_text`.
        sources: names of the sentences in error messages.

    Raises:
        DataError: there is no sentence, or a sentence with targets contains `BOUNDARY`.
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
            raise DataError(f"{source}: {BOUNDARY!r} is the mark of a sentence's end; readers add it, so leave it out")


def chains(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the children (N, 1) of chains: the previous vertex, or -1 at the start."""
    places = np.arange(sizes.sum()) - (sizes.cumsum() - sizes).repeat(sizes)
    return (places - 1)[:, None]


def read_stream(
    *paths: Source, steps: int = 64, min_count: int | None = None, like: GraphSet | None = None
) -> GraphSet:
    """Reads sentences of space-separated words, one sentence per line, as one stream; skips blank lines.

    See `graphs_of_stream`.

    Raises:
        DataError: a file cannot be read, or the files hold fewer words than a window.
    """
    _, sentences = read_sentences(paths)
    try:
        return graphs_of_stream(sentences, steps=steps, min_count=min_count, like=like)
    except DataError as error:
        raise DataError(f"{', '.join(map(str, paths))}: {error}") from None


def graphs_of_stream(
    sentences: Sequence[Sequence[str]], *, steps: int = 64, min_count: int | None = None, like: GraphSet | None = None
) -> GraphSet:
    """Cuts a stream of words into consecutive windows of `steps` words, for Cavs's Fixed-LSTM.

    The windows are chains of equal length (Xu et al. 2018, section 5). The stream begins with `BOUNDARY`, which also
    follows every sentence. Column `word` holds the stream. Column `next` holds the word that follows each, which may be
    the first word of the next window. An incomplete last window is dropped.

    Args:
        steps: words per window.
        min_count, like: see `read_text`.

    Raises:
        DataError: there are fewer words than a window has, or steps is below 1.
    """
    if steps < 1:
        raise DataError(f"windows of {steps} words: they need at least 1")
    _no_boundary(sentences, [f"sentence {k}" for k in range(len(sentences))])
    stream = [BOUNDARY, *(word for sentence in sentences for word in (*sentence, BOUNDARY))]
    n = (len(stream) - 1) // steps
    if not n:
        raise DataError(f"{len(stream) - 1} words, with sentence ends, do not fill a window of {steps}: reduce steps")
    vocabulary = words_of([stream], "word", min_count, like)
    numbers = np.array([vocabulary[word] for word in stream[: n * steps + 1]], np.int32)
    return GraphSet(
        np.full(n, steps), np.tile(np.arange(-1, steps - 1), n)[:, None], kinds=("word",),
        columns={"word": numbers[:-1], "next": numbers[1:]}, vocabularies={"word": vocabulary, "next": vocabulary},
    )  # fmt: skip
