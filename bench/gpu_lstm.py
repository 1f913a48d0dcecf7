"""Training speed of a chain LSTM with a loss at every token on a GPU: vpps beside torch.nn.LSTM (cuDNN).

    p = W e + b                     for all tokens
    i, f, g, o = p + U h'           c = sig(f) * c' + sig(i) * tanh(g)      h = sig(o) * tanh(c)
    loss: sum over all tokens of cross_entropy(Wo h + bo, label) / batch size

    python bench/gpu_lstm.py --sentences en.txt >> results/gpu/DATE-lstm.jsonl
    python bench/gpu_lstm.py --sentences en.txt --device cpu --seconds 0 --limit 8 --batch-sizes 1,4         (a check)

Measures sequences per second of forward, backward and SGD, at steady state (steady.py). The text is `word|label`
tokens, a sentence a line; `tokens=25` cuts it into pieces of that length, `tokens=real` takes the sentences as they
are. The first line is for vpps alone; a comparison with each peer follows. Losses of the first batches, each after an
update, must agree, or no figure is printed. A program that fails is named, the next one runs, and the exit status is 1.
"graph" is a CUDA graph of the whole step, for equal lengths. Chains of equal length are cuDNN's best case: nothing
about them is dynamic. vpps takes the sequences as data.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

import harness
import numpy as np
from datasets import Tokens, sentences_file
from numpy.typing import NDArray
from on_gpu import TOLERANCES, about, alone_then_beside, choose_contenders, compare, configure, parse
from treelstm import in_batches

BENCH = "gpu_lstm"
CONTENDERS = ("vpps", "cudnn", "graph")
LEARNING_RATE = 0.02


def read_sentences(path: Path) -> tuple[list[list[tuple[int, int]]], int, int]:
    """Return sentences as (word, label) numbers, and the numbers of words and labels. Exits if a token has no label."""
    words: dict[str, int] = {}
    labels: dict[str, int] = {}
    sentences = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            tokens = [token.rpartition("|") for token in line.split()]
            if any(not separator for _, separator, _ in tokens):
                raise SystemExit(f"{path}:{number}: expected tokens of the form word|label")
            if tokens:
                sentences.append(
                    [(words.setdefault(w, len(words)), labels.setdefault(l, len(labels))) for w, _, l in tokens]
                )
    if not sentences:
        raise SystemExit(f"{path}: no sentences")
    return sentences, len(words), len(labels)


def sequences(sentences: list[list[tuple[int, int]]], tokens: str, limit: int) -> list[Any]:
    """Return the first `limit` sentences, or pieces of the text that are `tokens` long."""
    if tokens == "real":
        pieces = sentences[:limit]
    else:
        text = [token for sentence in sentences for token in sentence]
        pieces = [piece for piece in in_batches(text, int(tokens)) if len(piece) == int(tokens)][:limit]
    return [Tokens(*(np.array(column, np.int64) for column in zip(*piece, strict=True))) for piece in pieces]


def initial_weights(words: int, labels: int, embedding: int, hidden: int) -> dict[str, NDArray[np.float32]]:
    """Return uniform weights; biases are small random numbers, so that a misplaced one changes the loss."""
    random = np.random.default_rng(1)

    def uniform(bound: float, *shape: int) -> NDArray[np.float32]:
        return random.uniform(-bound, bound, shape).astype(np.float32)

    bound = hidden**-0.5
    return {
        "words": uniform(0.1, words, embedding), "W": uniform(bound, 4 * hidden, embedding),
        "U": uniform(bound, 4 * hidden, hidden), "b": uniform(0.1, 4 * hidden), "Wo": uniform(bound, labels, hidden),
        "bo": uniform(0.1, labels),
    }  # fmt: skip


def make_contender(
    name: str, weights: dict[str, NDArray[np.float32]], precision: str, options: argparse.Namespace
) -> Any:
    """Return the program with that name, starting from a copy of the weights."""
    if name == "vpps":
        from models import VppsLstm

        return VppsLstm(weights, LEARNING_RATE, options.vps, options.device, precision)
    from peers.torch_gpu_lstm import TorchLstm

    return TorchLstm(weights, LEARNING_RATE, options.device, graph=name == "graph", autocast=precision == "bf16")


def run(names: list[str], tokens: str, batch_size: int, precision: str, options: argparse.Namespace) -> bool:
    """Check, warm up, time and report contenders in one case. Returns True if all could be measured."""
    configure(names, options.device, precision)
    sentences, words, labels = read_sentences(options.sentences)
    weights = initial_weights(words, labels, options.embedding, options.hidden)
    found = sequences(sentences, tokens, options.limit)
    found = found[: len(found) // batch_size * batch_size]  # whole mini-batches: one CUDA graph per shape
    if not found:
        raise ValueError(f"{options.sentences}: fewer than {batch_size} sequences for tokens={tokens}")
    sizes = f"hidden={options.hidden} embedding={options.embedding}"
    case = f"tokens={tokens} batch={batch_size} {sizes} precision={precision}"

    def made(name: str) -> tuple[Any, list[Any]]:
        contender = make_contender(name, weights, precision, options)
        return contender, in_batches([contender.prepare(each) for each in found], batch_size)

    def shown(name: str) -> str:
        return "torch.nn.LSTM" + (", CUDA graph" if name == "graph" else "")

    return compare(
        BENCH, case, "sequences/s", names, made, len(found), TOLERANCES[precision], options, shown,
        about(names, options.device, options.sentences),
    )  # fmt: skip


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = harness.parser(
        __doc__, batch_sizes=[1, 4, 16, 64], device="cuda", hidden=256, embedding=256, limit=256, passes=3, vps=None,
        contenders=None, quick=False,
    )  # fmt: skip
    parser.add_argument(
        "--sentences", type=Path, metavar="FILE", help="word|label tokens (default: WikiNER, datasets.py)"
    )
    parser.add_argument("--tokens", type=harness.words, default=["25", "50", "100", "real"])
    options = parse(parser)
    if options.quick:
        options.tokens, options.batch_sizes, options.limit = ["25", "real"], [1, 16], 64
        options.passes, options.seconds, options.precision = 2, 0.1, ["float32"]
    options.contenders = choose_contenders(options.contenders, CONTENDERS, options.device)
    options.sentences = sentences_file(options.sentences)
    return options


def main() -> None:
    """Run every case in every precision."""
    options = parse_options()
    well = True
    for precision in options.precision:
        for tokens in options.tokens:
            names = [name for name in options.contenders if name != "graph" or tokens != "real"]
            for batch_size in options.batch_sizes:
                case = partial(run, tokens=tokens, batch_size=batch_size, precision=precision, options=options)
                well &= alone_then_beside(names, case)
    sys.exit(not well)


if __name__ == "__main__":
    main()
