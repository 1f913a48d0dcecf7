"""Rows can be read from any positions in the pool."""

from __future__ import annotations

import numpy as np
import pytest

from vpps.engine.readback import read_rows

pytestmark = pytest.mark.host

POOL = np.arange(4096, dtype=np.float32)


@pytest.mark.parametrize(
    "addresses",
    [
        [64, 128, 192, 256],  # contiguous, if rows are 64 floats
        [512, 64, 1024, 64],  # in any order, one position twice
        [100, 117, 1030],  # at odd places, and overlapping
        [7],
        [],
    ],
)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (64,), (100,), (8, 12)])
def test_rows_are_what_begins_at_their_addresses(addresses: list[int], shape: tuple[int, ...]) -> None:
    width = int(np.prod(shape))
    found = read_rows(POOL, np.array(addresses, np.int64), shape)
    assert found.shape == (len(addresses), *shape)
    for row, at in zip(found, addresses, strict=True):
        np.testing.assert_array_equal(row.reshape(-1), POOL[at : at + width])


def test_rows_are_copies() -> None:
    for addresses in ([64, 128], [64, 256]):
        assert not np.shares_memory(read_rows(POOL, np.array(addresses), (64,)), POOL)
