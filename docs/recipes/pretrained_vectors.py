"""Pre-trained word vectors: reads a text file such as GloVe's into a lookup table."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.data import Vocabulary
from vpps.nn import Linear

WIDTH = 32

Vectors = dict[str, NDArray[np.float32]]
Example = tuple[list[str], int]


def read_vectors(path: Path, width: int, wanted: Collection[str]) -> Vectors:
    """Return the vectors of some words, from lines such as `word 0.1 -0.2 ...`; skip other lines."""
    found: Vectors = {}
    with path.open(encoding="utf-8") as file:
        for line in file:
            word, *numbers = line.rstrip().rsplit(" ", width)  # from the right: a few words of GloVe contain blanks
            if word in wanted and len(numbers) == width:
                found[word] = np.array(numbers, np.float32)
    return found


def table_of(vectors: Mapping[str, NDArray[np.float32]], vocabulary: Vocabulary) -> NDArray[np.float32]:
    """Return a row per word of the vocabulary; row 0 is for unknown words."""
    known = np.stack(list(vectors.values()))
    mean, spread = known.mean(axis=0), known.std(axis=0)
    table = np.random.default_rng(1).normal(mean, spread, (len(vocabulary), len(mean))).astype(np.float32)
    table[0] = mean
    for word, vector in vectors.items():
        table[vocabulary[word]] = vector
    return table


class Sentiment:
    """A linear layer on the mean of the word vectors."""

    def __init__(self, model: vpps.Model, table: NDArray[np.float32] | str, rows: int) -> None:
        self.words = model.lookup("words", (rows, WIDTH), init=table)
        self.output = Linear(model, WIDTH, 2, name="output")

    def logits(self, graph: vpps.Graph, words: Sequence[int]) -> vpps.Expression:
        return self.output(vpps.mean([graph.lookup(self.words, word) for word in words]))


def accuracy_with(
    table: NDArray[np.float32] | str, vocabulary: Vocabulary, train: list[Example], dev: list[Example]
) -> float:
    """Return the accuracy on `dev` after training from this table."""
    model = vpps.Model(seed=1)
    network = Sentiment(model, table, len(vocabulary))
    # Vectors that know something already take small steps: they would else learn the few training sentences by heart.
    optimizer = vpps.Adam(lr=0.01, groups={} if isinstance(table, str) else {"words": {"lr": 0.001}})
    with vpps.Handle(model, optimizer) as handle:
        for _ in range(40):
            graph = vpps.Graph()
            logits = [network.logits(graph, [vocabulary[word] for word in words]) for words, _ in train]
            handle.fb(graph, vpps.mean([vpps.cross_entropy(x, y) for x, (_, y) in zip(logits, train, strict=True)]))
        graph = vpps.Graph()
        found = handle.forward(graph, [network.logits(graph, [vocabulary[word] for word in words]) for words, _ in dev])
    return float(np.mean([logits.argmax() == label for logits, (_, label) in zip(found, dev, strict=True)]))


def main() -> tuple[float, float]:
    """Return the accuracy with and without the vectors."""
    source = random.Random(1)
    opinions = {f"word{k}": source.choice((-1, 1)) for k in range(400)}

    def example() -> Example:
        words = source.choices(list(opinions), k=source.choice((5, 7, 9)))
        return words, int(sum(opinions[word] for word in words) > 0)

    train, dev = [example() for _ in range(60)], [example() for _ in range(300)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vectors.txt"
        write_vectors(path, opinions)
        seen = {word for words, _ in train for word in words}
        # Words of the file that training never sees have rows, too: they are what the file is for.
        wanted = seen | {word for words, _ in dev for word in words}
        vectors = read_vectors(path, WIDTH, wanted)
    vocabulary = Vocabulary.from_sentences([sorted(seen | vectors.keys())])
    with_vectors = accuracy_with(table_of(vectors, vocabulary), vocabulary, train, dev)
    without = accuracy_with("uniform", vocabulary, train, dev)
    print(f"{len(vectors)} of {len(wanted)} words have a vector, {len(wanted - seen)} are not in the training data")
    print(f"dev accuracy {with_vectors:.2f} with the vectors, {without:.2f} without")
    return with_vectors, without


def write_vectors(path: Path, opinions: Mapping[str, int]) -> None:
    """Write a file in GloVe's format for nine words of ten; words of one opinion are near each other."""
    rng = np.random.default_rng(2)
    direction = rng.normal(size=WIDTH)
    with path.open("w", encoding="utf-8") as file:
        for k, (word, opinion) in enumerate(opinions.items()):
            if k % 10:
                vector = 0.3 * (opinion * direction + rng.normal(size=WIDTH))
                print(word, *(f"{number:.4f}" for number in vector), file=file)


if __name__ == "__main__":
    main()
