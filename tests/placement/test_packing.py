"""Packed matrices: where every element is, whether the pool is the host's memory or a device's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vpps
from vpps.placement.distribution import Distribution
from vpps.placement.stacks import Stacks

pytestmark = pytest.mark.host

PANEL = 8


class Device:
    """A pool whose floats are copied, as those of a GPU are."""

    def __init__(self, floats: int) -> None:
        self.floats = np.full(floats, np.nan, np.float32)

    def __getitem__(self, place: Any) -> Any:
        return self.floats[place].copy()

    def __setitem__(self, place: Any, values: Any) -> None:
        self.floats[place] = values


def host(floats: int) -> Any:
    return np.full(floats, np.nan, np.float32)


def packed(matrix: Any) -> Any:
    """By definition: panels of rows, column by column; zeros behind the last row."""
    rows, columns = matrix.shape
    found = np.zeros((-(-rows // PANEL), columns, PANEL), np.float32)
    for r in range(rows):
        found[r // PANEL, :, r % PANEL] = matrix[r]
    return found.reshape(-1)


@pytest.mark.parametrize("pool_of", [host, Device])
@pytest.mark.parametrize("shape", [(1, 1), (8, 8), (16, 24), (5, 3), (17, 9), (9, 17)])
def test_a_matrix_and_its_transpose(shape: tuple[int, int], pool_of: Callable[[int], Any]) -> None:
    model = vpps.Model(seed=1)
    W = model.parameter("W", shape)
    distribution = Distribution(model, 1, PANEL, 0, train=True)
    pool, place = pool_of(distribution.end), distribution.places[W]
    distribution.store_weights(pool, W, W.numpy())
    for address, matrix in ((place.weights, W.numpy()), (place.transposed, W.numpy().T)):
        expected = packed(matrix)
        assert pool[address : address + len(expected)].tobytes() == expected.tobytes()
    fetched = distribution.fetch(pool, W, place.weights)
    assert fetched.tobytes() == W.numpy().tobytes()
    assert fetched.flags.c_contiguous
    pool[place.weights : place.weights + 1] = 7
    assert fetched.tobytes() == W.numpy().tobytes()


@pytest.mark.parametrize("pool_of", [host, Device])
def test_members_of_a_stack(pool_of: Callable[[int], Any]) -> None:
    """Each is written by itself, and the others stay."""
    model = vpps.Model(seed=1)
    members = [model.parameter(name, (2 * PANEL, 11)) for name in "abc"]
    stacked = Distribution(model, 1, PANEL, 0, train=True, stacks=Stacks.made_of([members]))
    pool = pool_of(stacked.end)
    for p in (members[1], members[2], members[0]):
        stacked.store_weights(pool, p, p.numpy())
    whole = np.concatenate([p.numpy() for p in members])
    place = next(iter(stacked.physical.values()))
    for address, matrix in ((place.weights, whole), (place.transposed, whole.T)):
        expected = packed(matrix)
        assert pool[address : address + len(expected)].tobytes() == expected.tobytes()
    for p in members:
        assert stacked.fetch(pool, p, stacked.places[p].weights).tobytes() == p.numpy().tobytes()
