"""Random numbers for dropout in NumPy: Philox 4x32-10, a counter-based generator (Salmon et al. 2011, "Parallel random
numbers: as easy as 1, 2, 3"). The kernel's version is templates/random.cuh; the two agree bit for bit.

A word depends only on the launch key and its use: vertex, dropout within the cell, list element, unit. Order, layout
and number of processors do not change it, and backward recomputes it instead of storing a mask. A vertex is identified
by its example in the whole mini-batch and the number of that example's vertices recorded before it (`first_draw`). So
splitting the batch among processes does not change a word either. The key (seed, update, calls accumulated since) is in
the script, which also turns dropout off in inference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Words = NDArray[np.uint32]

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)  # golden ratio, sqrt(3) - 1

# A row's units are assigned to counters in blocks of 64: 16 lanes of a vector register times 4 words of a counter.
LANES = 16
BLOCK = 4 * LANES

EXAMPLE_STEP = KEY_STEPS[0]
"""Distance from the first vertex of an example to that of the next one, modulo 2^32. Multiples of the golden ratio
spread evenly, however many there are (Knuth, vol. 3, 6.4): n examples, up to 50,000, start at least 2^32 / 3n apart. If
no example has more vertices than that, all vertices have different numbers."""


class LaunchKey(NamedTuple):
    """The 64 bits that distinguish one launch's random numbers from another's."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class StepKey:
    """A training launch's key, whose two words are computed on demand; see `launch_key`."""

    seed: int
    step: int
    accumulated: int = 0
    shard: int = 0

    def __iter__(self) -> Iterator[int]:
        return iter(launch_key(self.seed, self.step, self.accumulated))


def philox(counter: Sequence[ArrayLike], key: tuple[int, int]) -> tuple[Words, ...]:
    """Return four random words for each counter, given as four words: ints or arrays, which broadcast."""
    words = _rounds([np.asarray(c, np.uint32).astype(np.uint64) for c in counter], key, np.uint64)
    return tuple(w.astype(np.uint32) for w in words)


def _rounds(counter: Sequence[Any], key: tuple[int, int], constant: Callable[[int], Any]) -> tuple[Any, ...]:
    """Compute the ten rounds, on arrays of 64-bit integers or on Python ints.

    Args:
        constant: converts a constant to the type used.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    m0, m1, low, half = map(constant, (*MULTIPLIERS, 0xFFFFFFFF, 32))
    for _ in range(ROUNDS):
        p0, p1 = c0 * m0, c2 * m1
        c0, c2 = (p1 >> half) ^ c1 ^ constant(k0), (p0 >> half) ^ c3 ^ constant(k1)
        c1, c3 = p1 & low, p0 & low
        k0, k1 = (k0 + KEY_STEPS[0]) & 0xFFFFFFFF, (k1 + KEY_STEPS[1]) & 0xFFFFFFFF
    return c0, c1, c2, c3


def launch_key(seed: int, step: int, accumulated: int = 0) -> LaunchKey:
    """Return the key for one training launch.

    Args:
        seed: the model's seed, any int.
        step: number of the update, from 1, that the launch applies or contributes to.
        accumulated: earlier calls of `fb` that contributed to that update.
    """
    if not 0 <= seed < 2**64:  # for any other int, take 64 bits of a digest
        seed = int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=8).digest(), "little")
    counter = [c & 0xFFFFFFFF for c in (step, step >> 32, accumulated, -1)]
    # Every step computes a key, and arrays of one element are ten times as slow as ints.
    low, high, _, _ = _rounds(counter, (seed & 0xFFFFFFFF, seed >> 32), int)
    return LaunchKey(low, high)


def first_draw(example: int) -> int:
    """Return the number of an example's first vertex; the others follow it, modulo 2^32.

    Args:
        example: -1 - s stands for all vertices of shard s that belong to no example.
    """
    return (example + 1) * EXAMPLE_STEP % 2**32


def random_words(key: LaunchKey, draws: NDArray[Any], positions: NDArray[Any], number: int, width: int) -> Words:
    """Return a random word for every unit in some rows.

    Args:
        draws: number of each row's vertex; see `first_draw`.
        positions: each row's position in the vertex's list; 0 for a row that is the vertex itself.
        number: number of the dropout within the cell.
        width: number of units in a row.

    Returns:
        `(rows, width)`.
    """
    blocks = -(-width // BLOCK)
    lanes = np.arange(blocks * LANES)[None, :]
    words = philox((lanes, positions[:, None], draws[:, None], number), key)
    by_word = np.stack([w.reshape(len(draws), blocks, LANES) for w in words], axis=2)
    return by_word.reshape(len(draws), blocks * BLOCK)[:, :width]
