"""Character-word lattices (Zhang & Yang 2018) as ED-Batch's Weibo files have them.

    113                      the number of sentences
                             a sentence, perhaps after a blank line:
    14                       its number of positions n, the first of them a mark of the beginning
    0 7 9 7 ...              n tags
    0                        n lines, one a position: k, then k pairs of a position and a number; first 0 pairs
    1 0 62                   from the position before: the character and its number
    2 1 480 0 3395           from a position further back: the word that ends here, and its number

The mark of the beginning becomes no vertex: what reads it has -1 as its child, that is, zeros. For every other position
there is a vertex for each word that ends there, whose one child is the character before the word, and then one for the
character, whose children are the character before it and those words.
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
    """Lattices as lists of children: kinds `character` and `word`, columns `character`, `word` and `tag`.

    A column is -1 where it does not apply: `word` at characters, `character` and `tag` at words. Characters and words
    are numbered apart. The first child of a character is the one before it, -1 at the beginning.

    Args:
        min_count: number characters and words anew, by vocabularies whose words are the file's numbers: those that
            occur less often become unknown, 0; not beside `like`. By default the numbers are those of the file.
        like: take the vocabularies from this set, which has some.

    Raises:
        DataError: a file cannot be read or is malformed; with file and line. `like` has no vocabularies.
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
    """Lattices while they are read."""

    def __init__(self) -> None:
        super().__init__("kind", "character", "word", "tag")

    def position(self, of_position: list[int], words: Iterable[tuple[int, int]], character: int, tag: int) -> None:
        """The vertices of a position: of the words that end there, then of its character.

        Args:
            of_position: the vertex of the character at each position before, that at the beginning being -1; gets that
                of this one.
            words: the position where each begins, and its number.
        """
        ending = [self.vertex([of_position[first]], kind=1, word=word) for first, word in words]
        of_position.append(self.vertex([of_position[-1], *ending], kind=0, character=character, tag=tag))

    def graphs(self, vocabularies: Mapping[str, Vocabulary]) -> GraphSet:
        """What has been read."""
        kind = self.columns.pop("kind")
        return GraphSet(
            self.sizes, (self.offsets, self.children), kind=kind, kinds=KINDS, columns=self.columns,
            vocabularies=vocabularies, sources=self.sources,
        )  # fmt: skip


def _read(path: Source, lattices: Lattices) -> None:
    """A file. Raises DataError."""
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
    """The lines of a file that are not blank, as non-negative integers."""

    def __init__(self, path: Source) -> None:
        self.path = path
        self.number = 0
        self.text = ""
        self._lines: Iterator[tuple[int, str]] = ((n, text) for n, text in read_lines(path) if text.strip())

    def more(self) -> bool:
        """Whether there is another line, which becomes the one that `fail` shows."""
        found = next(self._lines, None)
        if found is not None:
            self.number, self.text = found
        return found is not None

    def take(self, what: str, length: int | None = None) -> list[int]:
        """The next line. Raises DataError where it is not `what`."""
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
