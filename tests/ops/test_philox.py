"""The random generator gives the known answers; simple statistical tests find its words uniform and independent."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from vpps.ops.philox import BLOCK, LANES, LaunchKey, first_draw, launch_key, philox, random_words

pytestmark = pytest.mark.host

# By the generator's authors: counter, key, result (kat_vectors of Random123, philox4x32 with 10 rounds).
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
KEY = launch_key(1, 1)


def parsed(words: str) -> list[int]:
    return [int(w, 16) for w in words.split()]


@pytest.mark.parametrize("counter, key, expected", KNOWN)
def test_known_answers(counter: str, key: str, expected: str) -> None:
    k0, k1 = parsed(key)
    assert [int(w) for w in philox(parsed(counter), (k0, k1))] == parsed(expected)


def test_a_unit_has_its_own_counter_and_word() -> None:
    """Unit u of a row: word u % 64 // 16 of counter u // 64 * 16 + u % 16."""
    words = random_words(KEY, np.array([7]), np.array([3]), 2, 150)[0]
    for u in range(150):
        counter = u // BLOCK * LANES + u % LANES
        assert words[u] == philox((counter, 3, 7, 2), KEY)[u % BLOCK // LANES]


def test_words_do_not_depend_on_the_width_or_on_other_rows() -> None:
    calls, positions = np.arange(9), np.arange(9)[::-1].copy()
    words = random_words(KEY, calls, positions, 0, 200)
    for width in (1, 15, 64, 65):
        assert np.array_equal(random_words(KEY, calls, positions, 0, width), words[:, :width])
    assert np.array_equal(random_words(KEY, calls[4:5], positions[4:5], 0, 200)[0], words[4])


def test_numbers_of_examples_lie_apart() -> None:
    """In the first shards, numbers outside examples do not collide either."""
    for n in (2, 3, 64, 1000, 50_000):
        starts = np.sort([first_draw(k) for k in range(-4, n - 4)])
        assert np.diff(starts, append=starts[0] + 2**32).min() >= 2**32 / (3 * n)
    assert first_draw(-1) == 0


def test_no_rows_no_words() -> None:
    assert random_words(KEY, np.zeros(0, np.int64), np.zeros(0, np.int64), 0, 5).shape == (0, 5)


def test_keys_of_launches_differ() -> None:
    seeds = (0, 1, -1, 2**32, 2**63, 2**64 - 1, 2**64, -(2**70), 10**30)
    keys = [launch_key(seed, step, k) for seed in seeds for step in (1, 2, 2**32 + 1) for k in (0, 1, 2)]
    assert len(set(keys)) == len(keys)
    assert all(0 <= word < 2**32 for key in keys for word in key)


def test_words_are_uniform_and_neighbours_are_independent() -> None:
    """Chi-square tests of the leading bits, singly and in pairs along every counter axis; 99.9999 % bounds."""
    bins = 16

    def chi_square(counts: NDArray[np.float64]) -> float:
        expected = counts.sum() / counts.size
        return float(((counts - expected) ** 2 / expected).sum())

    def bound(degrees: int) -> float:
        return degrees * (1 - 2 / (9 * degrees) + 4.75 * np.sqrt(2 / (9 * degrees))) ** 3  # Wilson & Hilferty 1931

    n, width = 300, 256
    calls, zeros = np.arange(n), np.zeros(n, np.int64)
    base = random_words(KEY, calls, zeros, 0, width)
    low = KEY.low
    neighbours = {
        "unit": (base[:, :-1], base[:, 1:]),
        "lane": (base[:, :-LANES], base[:, LANES:]),
        "vertex": (base[:-1], base[1:]),
        "list element": (base, random_words(KEY, calls, zeros + 1, 0, width)),
        "dropout": (base, random_words(KEY, calls, zeros, 1, width)),
        "key": (base, random_words(LaunchKey(low ^ 1, KEY.high), calls, zeros, 0, width)),
        "step": (base, random_words(launch_key(1, 2), calls, zeros, 0, width)),
        "seed": (base, random_words(launch_key(2, 1), calls, zeros, 0, width)),
    }
    for shift in (28, 14, 0):  # leading, middle and last bits
        single = np.bincount((base >> shift).reshape(-1) % bins, minlength=bins)
        assert chi_square(single) < bound(bins - 1)
        for name, (a, b) in neighbours.items():
            pairs = (a >> shift).reshape(-1) % bins * bins + (b >> shift).reshape(-1) % bins
            assert chi_square(np.bincount(pairs, minlength=bins * bins)) < bound(bins * bins - 1), name


@pytest.mark.parametrize("seed, step, accumulated", [(0, 1, 0), (2**64 - 1, 2**40 + 7, 2**32 - 1), (12345, 99, 3)])
def test_keys_of_launches_are_words_of_the_generator(seed: int, step: int, accumulated: int) -> None:
    counter = [step & 0xFFFFFFFF, step >> 32, accumulated, 0xFFFFFFFF]
    low, high, _, _ = philox(counter, (seed & 0xFFFFFFFF, seed >> 32))
    assert launch_key(seed, step, accumulated) == (int(low), int(high))
