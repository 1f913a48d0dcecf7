"""Packed matrices: the place of every element, in a pool in host or device memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vpps
from vpps.model.precisions import Precisions
from vpps.ops.precision import PRECISIONS
from vpps.placement.distribution import Distribution
from vpps.placement.stacks import Stacks

pytestmark = pytest.mark.host

PANEL = 8


class Device:
    """A pool whose reads are copies, as on a GPU."""

    def __init__(self, floats: int) -> None:
        self.floats = np.full(floats, np.nan, np.float32)

    def __getitem__(self, place: Any) -> Any:
        return self.floats[place].copy()

    def __setitem__(self, place: Any, values: Any) -> None:
        self.floats[place] = values


def host(floats: int) -> Any:
    return np.full(floats, np.nan, np.float32)


def packed(matrix: Any) -> Any:
    """Pack by definition: panels of rows, column by column, with zeros after the last row."""
    rows, columns = matrix.shape
    found = np.zeros((-(-rows // PANEL), columns, PANEL), np.float32)
    for r in range(rows):
        found[r // PANEL, :, r % PANEL] = matrix[r]
    return found.reshape(-1)


def in_pairs(matrix: Any) -> Any:
    """Pack by definition: word c holds columns 2c and 2c + 1, rounded, in its lower and upper half; then zeros."""
    rows, columns = matrix.shape
    found = np.zeros((rows, -(-columns // 2)), np.uint32)
    for c in range(columns):
        found[:, c // 2] |= PRECISIONS["bf16"].round(matrix[:, c]).view(np.uint32) >> 16 << (16 * (c % 2))
    return packed(found.view(np.float32))


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("pool_of", [host, Device])
@pytest.mark.parametrize("shape", [(1, 1), (8, 8), (16, 24), (5, 3), (17, 9), (9, 17)])
def test_a_matrix_and_its_transpose(shape: tuple[int, int], pool_of: Callable[[int], Any], precision: str) -> None:
    """In pairs, subnormal numbers become zero, as in products."""
    model = vpps.Model(seed=1)
    W = model.parameter("W", shape)
    value = W.numpy()
    value[-1, -1] = 1e-39
    distribution = Distribution(model, 1, PANEL, 0, train=True, precisions=Precisions.given(precision))
    pool, place = pool_of(distribution.end), distribution.places[W]
    distribution.store_weights(pool, W, value)
    placed = [(place.weights, packed(value)), (place.transposed, packed(value.T))]
    if precision == "bf16":
        normal = np.where(value == value[-1, -1], np.float32(0), value)
        placed[1:] = [(place.factor, in_pairs(normal)), (place.transposed, in_pairs(normal.T))]
        assert distribution.copies(W) == (in_pairs(value).nbytes, in_pairs(value.T).nbytes)
    for address, expected in placed:
        assert pool[address : address + len(expected)].tobytes() == expected.tobytes()
    fetched = distribution.fetch(pool, W, place.weights)
    assert fetched.tobytes() == value.tobytes()
    assert fetched.flags.c_contiguous
    pool[place.weights : place.weights + 1] = 7
    assert fetched.tobytes() == value.tobytes()


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("pool_of", [host, Device])
def test_members_of_a_stack(pool_of: Callable[[int], Any], precision: str) -> None:
    """A write to one member leaves the others unchanged. Products in bf16 read pairs."""
    model = vpps.Model(seed=1)
    members = [model.parameter(name, (2 * PANEL, 11)) for name in "abc"]
    precisions, stacks = Precisions.given(precision), Stacks.made_of([members])
    stacked = Distribution(model, 1, PANEL, 0, train=True, stacks=stacks, precisions=precisions)
    pool = pool_of(stacked.end)
    for p in (members[1], members[2], members[0]):
        stacked.store_weights(pool, p, p.numpy())
    whole = np.concatenate([p.numpy() for p in members])
    place = next(iter(stacked.physical.values()))
    placed = [(place.weights, packed(whole))]
    if precision == "bf16":
        placed += [(place.factor, in_pairs(whole)), (place.transposed, in_pairs(whole.T))]
    else:
        placed += [(place.transposed, packed(whole.T))]
    for address, expected in placed:
        assert pool[address : address + len(expected)].tobytes() == expected.tobytes()
    for p in members:
        assert stacked.fetch(pool, p, stacked.places[p].weights).tobytes() == p.numpy().tobytes()
