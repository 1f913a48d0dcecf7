"""Measures a step of greedy decoding: an LSTM language model predicts the next word after a number of words.

    python bench/decoding.py [--hidden 256] [--rounds 5] [--vps 1] >> decoding.jsonl
    PYTHONPATH=other/checkout python bench/decoding.py    # the same figures for another version of vpps

`value` is the microseconds for recording a step, `forward`, and the argmax on the host, in a graph that grows by one
word at a time. It is the median over ten steps; `case` is the number of the last step. The peer records each step in a
new graph, which reads the previous step's states as arrays. `pool` is the handle's size in bytes at the end.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import harness
import numpy as np

import vpps
from vpps.nn import LSTM

BENCH, LENGTHS, WORDS = "decoding", (50, 200, 390), 1000
STEPS = 10  # steps per median


class Decoder:
    """A language model and its handle."""

    def __init__(self, hidden: int, vps: int | None) -> None:
        self.hidden, model = hidden, vpps.Model(seed=1)
        self.words = model.lookup("words", (WORDS, hidden))
        self.lstm = LSTM(model, hidden, hidden)
        self.output = model.parameter("output", (WORDS, hidden))
        self.handle = vpps.Handle(model, train=False, vps=vps)

    def next_word(self, graph: vpps.Graph, wanted: list[vpps.Expression]) -> tuple[int, list[np.ndarray]]:
        """Return the most probable word, and the values of `wanted`."""
        scores, *others = self.handle.forward(graph, wanted)
        return int(np.argmax(scores)), others

    def growing(self) -> Iterator[int]:
        """Yield words, all from one graph."""
        graph, word = vpps.Graph(), 0
        h, c = graph.zeros(self.hidden), graph.zeros(self.hidden)
        while True:
            h, c = self.lstm.step(graph.lookup(self.words, word), h, c)
            word, _ = self.next_word(graph, [self.output @ h])
            yield word

    def apart(self) -> Iterator[int]:
        """Yield words, each from a new graph."""
        word, states = 0, [np.zeros(self.hidden, np.float32)] * 2
        while True:
            graph = vpps.Graph()
            h, c = self.lstm.step(graph.lookup(self.words, word), *map(graph.input, states))
            word, states = self.next_word(graph, [self.output @ h, h, c])
            yield word


def seconds(words: Iterator[int], longest: int) -> tuple[list[float], list[int]]:
    """Return the seconds of each step, and the words."""
    found, read = [], []
    for _ in range(longest):
        start = time.perf_counter()
        read.append(next(words))
        found.append(time.perf_counter() - start)
    return found, read


def main() -> None:
    """Print a line for each length."""
    parser = harness.parser(__doc__, hidden=256, rounds=5, vps=None)
    parser.add_argument("--lengths", type=harness.numbers, default=list(LENGTHS), metavar="N,N,...")
    options = parser.parse_args()
    grown, apart = Decoder(options.hidden, options.vps), Decoder(options.hidden, options.vps)
    longest = max(options.lengths)
    rounds = []
    for _ in range(options.rounds + 1):
        (a, words), (b, others) = seconds(grown.growing(), longest), seconds(apart.apart(), longest)
        assert words == others, "the words differ"
        rounds.append((a, b))
    for length in options.lengths:
        steps = slice(max(length - STEPS, 0), length)
        ours, theirs = ([1e6 * statistics.median(of[steps]) for of in side] for side in zip(*rounds[1:], strict=True))
        case = f"hidden={options.hidden} length={length} vps={grown.handle.vps}"
        peer = "graph-per-step", theirs
        harness.report(BENCH, case, ours, "us", peer, higher_is_better=False, pool=grown.handle.memory.pool)


if __name__ == "__main__":
    main()
