"""Text as one stream of words, cut in windows of one length: chains without ends of sentences to care for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vpps.data.graphset import GraphSet
from vpps.data.readers.names import Source, words_of
from vpps.data.readers.sentences import BOUNDARY, read_sentences
from vpps.errors import DataError


def read_stream(*paths: Source, steps: int = 64, min_count: int = 2, like: GraphSet | None = None) -> GraphSet:
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
    sentences: Sequence[Sequence[str]], *, steps: int = 64, min_count: int = 2, like: GraphSet | None = None
) -> GraphSet:
    """Windows of `steps` words, one after the other: chains that are all of one length, as Cavs's Fixed-LSTM takes them
    (Xu et al. 2018, section 5).

    The stream is `BOUNDARY` and then every sentence, followed by `BOUNDARY`. Column `word` is the stream, column `next`
    what follows each word there, which may be the first word of the next window. What does not fill a window is left
    out.

    Args:
        steps: words per window.
        min_count: words that occur less often become unknown, which `<unk>` in the text is already.
        like: take the vocabulary from this set.

    Raises:
        DataError: there are fewer words than a window has, or steps is below 1.
    """
    if steps < 1:
        raise DataError(f"windows of {steps} words: they need at least 1")
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
