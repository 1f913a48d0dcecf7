"""Reads character-word lattices (Zhang & Yang 2018) in the format of ED-Batch's Weibo files.

    113                      the number of sentences
                             a sentence, perhaps after a blank line:
    14                       its number of positions n; the first position is a start mark
    0 7 9 7 ...              n tags
    0                        n lines, one per position: k, then k pairs of a position and a number; at first 0 pairs
    1 0 62                   a pair with the previous position: the number of the character here
    2 1 480 0 3395           a pair with an earlier position: the number of a word that ends here

The start mark gets no vertex; vertices that would read it have -1 as their child, which stands for zeros. Every other
position has one vertex per word that ends there, whose only child is the character before the word, and then one vertex
for the character, whose children are the previous character and those words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NoReturn

from vpps.data.graphset import GraphSet
from vpps.data.lines import read_lines
from vpps.data.readers.names import GraphLists, Source, some_graphs, words_of
from vpps.data.vocabulary import Vocabulary
from vpps.errors import DataError

KINDS = ("character", "word")


def read_lattices(*paths: Source, min_count: int | None = None, like: GraphSet | None = None) -> GraphSet:
    """Reads lattices with lists of children: kinds `character` and `word`, columns `character`, `word` and `tag`.

    Column `word` is -1 at characters; columns `character` and `tag` are -1 at words. Characters and words have separate
    numbers. The first child of a character is the previous character, or -1 at the start.

    Args:
        min_count: renumber characters and words; numbers that occur less often become 0 (unknown). The new vocabularies
            hold the file's numbers as words. Not allowed with `like`. By default, the file's numbers are kept.
        like: take the vocabularies from this set, which must have them.

    Raises:
        DataError: a file cannot be read or is malformed (the message gives the line), or `like` has no vocabularies.
    """
    lattices = Lattices()
    for path in paths:
        _read(path, lattices)
    some_graphs(paths, len(lattices.sizes), "a number of sentences")
    vocabularies: dict[str, Vocabulary] = {}
    if min_count is not None or like is not None:
        for name in KINDS:
            column = lattices.columns[name]
            symbols = [str(number) for number in column if number >= 0]
            words = vocabularies[name] = words_of([symbols], name, min_count, like, default=1)
            column[:] = [-1 if number < 0 else words[str(number)] for number in column]
    return lattices.graphs(vocabularies)


class Lattices(GraphLists):
    """Collects lattices while they are read."""

    def __init__(self) -> None:
        super().__init__("kind", "character", "word", "tag")

    def position(self, of_position: list[int], words: Iterable[tuple[int, int]], character: int, tag: int) -> None:
        """Adds the vertices of a position: the words that end there, then its character.

        Args:
            of_position: character vertices of the previous positions, with -1 for the start mark. This method appends
                the new character vertex.
            words: the start position and the number of each word.
        """
        ending = [self.vertex([of_position[first]], kind=1, word=word) for first, word in words]
        of_position.append(self.vertex([of_position[-1], *ending], kind=0, character=character, tag=tag))

    def graphs(self, vocabularies: Mapping[str, Vocabulary]) -> GraphSet:
        """Returns the lattices as a set."""
        kind = self.columns.pop("kind")
        return GraphSet(
            self.sizes, (self.offsets, self.children), kind=kind, kinds=KINDS, columns=self.columns,
            vocabularies=vocabularies, sources=self.sources,
        )  # fmt: skip


def _read(path: Source, lattices: Lattices) -> None:
    """Adds the lattices in a file. Raises DataError."""
    lines = _Numbers(path)
    (count,) = lines.take("the number of sentences", length=1)
    for sentence in range(count):
        (n,) = lines.take(f"the number of positions of sentence {sentence + 1} of {count}", length=1)
        if n < 2:
            lines.fail("at least 2 positions, the beginning and a character")
        source = f"{path}:{lines.number}"
        of_position = [-1]
        for place, tag in enumerate(lines.take(f"{n} tags", length=n)):
            arcs = lines.take("a number of arcs, then a position and a number for each")
            pairs = list(zip(arcs[1::2], arcs[2::2], strict=False))
            if len(arcs) != 1 + 2 * arcs[0]:
                lines.fail(f"{2 * arcs[0]} numbers after {arcs[0]}, the number of arcs")
            if not place:
                if pairs:
                    lines.fail("0 arcs at the beginning")
                continue
            characters = [number for first, number in pairs if first == place - 1]
            if len(characters) != 1 or any(first >= place for first, _ in pairs):
                lines.fail(f"one arc from position {place - 1}, the character, and all others from before it")
            words = [(first, number) for first, number in pairs if first < place - 1]
            lattices.position(of_position, words, characters[0], tag)
        lattices.end(source)
    if lines.more():
        lines.fail(f"the end after {count} sentences")


class _Numbers:
    """Reads the non-blank lines of a file as non-negative integers."""

    def __init__(self, path: Source) -> None:
        self.path = path
        self.number = 0
        self.text = ""
        self._lines: Iterator[tuple[int, str]] = ((n, text) for n, text in read_lines(path) if text.strip())

    def more(self) -> bool:
        """Advances to the next line, which `fail` then reports; returns False at the end of the file."""
        found = next(self._lines, None)
        if found is not None:
            self.number, self.text = found
        return found is not None

    def take(self, what: str, length: int | None = None) -> list[int]:
        """Returns the next line's integers. Raises DataError if the line is not `what`."""
        if not self.more():
            raise DataError(f"{self.path}:{self.number + 1}: expected {what}, found the end of the file")
        tokens = self.text.split()
        numbers = all(token.isascii() and token.isdigit() and len(token) < 10 for token in tokens)  # they fit int32
        if not numbers or length not in (None, len(tokens)):
            self.fail(what)
        return list(map(int, tokens))

    def fail(self, expected: str) -> NoReturn:
        found = self.text if len(self.text) <= 60 else self.text[:57] + "..."
        raise DataError(f"{self.path}:{self.number}: expected {expected}, found {found!r}")
