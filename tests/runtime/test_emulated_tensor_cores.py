"""The emulator's tensor cores: each lane's fragment elements, as in the PTX ISA, and rounding."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.runtime.test_emulator import WARP_STAGING, emulator, faulty, run, without
from vpps.ops.precision import PRECISIONS

pytestmark = pytest.mark.simt

LANES = np.arange(32)
GROUP, MEMBER = LANES // 4, LANES % 4  # groupID and threadID_in_group of PTX ISA
Words = NDArray[np.uint32]
Place = tuple[NDArray[np.int64], NDArray[np.int64]]  # row and column, by lane


def launched(body: str, words: Words) -> Words:
    """Return the words that a warp writes over its input (lanes, some), called `mine`, 16 per lane."""
    pool = np.zeros((32, 16), np.uint32)
    pool[:, : words.shape[1]] = words
    flat = pool.reshape(-1).view(np.float32)
    report = np.zeros(8, np.uint32)
    body = f"if (t >= 32) return; float* mine = pool + 16 * t; {body}"
    counters = np.zeros(64, np.uint32), np.zeros(64, np.uint32)
    assert emulator(body).run(flat, np.zeros(1, np.uint32), *counters, report, blocks=1, shared_bytes=0) == []
    return flat.view(np.uint32).reshape(32, 16)


def bits(values: NDArray[np.float32]) -> Words:
    return np.ascontiguousarray(values, np.float32).view(np.uint32)


def fragment(matrix: NDArray[np.float32], places: list[Place], halves: bool) -> Words:
    """Return registers (lanes, some) with the elements at these places: one each, or two bf16, the first one lower."""
    found = np.stack([bits(matrix[place]) for place in places], axis=1)
    return found[:, 0::2] >> np.uint32(16) | found[:, 1::2] if halves else found


# By name: terms of a sum, True for registers of halves, and places of a lane's fragment elements of A and B.
SHAPES: dict[str, tuple[int, bool, list[Place], list[Place]]] = {
    "mma_bf16": (
        16,
        True,
        [(GROUP + (8 if i // 2 % 2 else 0), 2 * MEMBER + i % 2 + (8 if i >= 4 else 0)) for i in range(8)],
        [(2 * MEMBER + i % 2 + (8 if i >= 2 else 0), GROUP) for i in range(4)],
    ),
    "mma_tf32": (
        8,
        False,
        [(GROUP + (8 if i % 2 else 0), MEMBER + (4 if i >= 2 else 0)) for i in range(4)],
        [(MEMBER + (4 if i else 0), GROUP) for i in range(2)],
    ),
}
RESULTS: list[Place] = [(GROUP + (8 if i >= 2 else 0), 2 * MEMBER + i % 2) for i in range(4)]


@pytest.mark.parametrize("name", SHAPES)
def test_products_have_every_element_where_ptx_isa_says(name: str) -> None:
    terms, halves, a_places, b_places = SHAPES[name]
    a = np.arange(1, 16 * terms + 1, dtype=np.float32).reshape(
        16, terms
    )  # up to 256: exact in bf16, as sums in float32
    b = np.arange(1, 8 * terms + 1, dtype=np.float32).reshape(terms, 8)[::-1]
    c = np.arange(128, dtype=np.float32).reshape(16, 8) * 1000
    operands = fragment(a, a_places, halves), fragment(b, b_places, halves)
    sums = fragment(c, RESULTS, halves=False)
    words = ", ".join(f"__float_as_uint(mine[{4 + k}])" for k in range(sum(x.shape[1] for x in operands)))
    body = f"float c[4]; memcpy(c, mine, 8), memcpy(c + 2, mine + 2, 8); {name}(c, {words});"
    found = launched(
        f"{body} for (int k = 0; k < 4; k++) mine[k] = c[k];", np.concatenate([sums, *operands], axis=1)
    ).view(np.float32)
    expected = a.astype(np.float64) @ b + c
    for i, place in enumerate(RESULTS):
        np.testing.assert_array_equal(found[:, i], expected[place])


def test_movmatrix_has_every_element_where_ptx_isa_says() -> None:
    matrix = np.arange(1000, 1064, dtype=np.uint32).reshape(8, 8)
    rows, columns = GROUP, 2 * MEMBER
    words = matrix[rows, columns] | matrix[rows, columns + 1] << np.uint32(16)
    found = launched("mine[0] = __uint_as_float(transposed_halves(__float_as_uint(mine[0])));", words[:, None])[:, 0]
    np.testing.assert_array_equal(found, matrix[columns, rows] | matrix[columns + 1, rows] << np.uint32(16))


@pytest.mark.parametrize(
    "name, code",
    [
        ("bf16", "bf16_pair(x, 0.f) << 16"),
        ("bf16", "bf16_pair(0.f, x) & 0xffff0000u"),
        ("tf32", "tf32_of(x) & ~0x1fffu"),
    ],
)
def test_rounding_is_that_of_the_table_of_precisions(name: str, code: str) -> None:
    precision = PRECISIONS[name]
    near_ties = np.arange(0x3F800000, 0x3F800000 + 249 * 0x0FFF, 0x0FFF, dtype=np.uint32)
    special = [
        0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x80000000, 1, 0x00008000, 0x00001000, 0x7F7F8000, 0x3F808000,
        0x3F818000, 0x3F801000, 0x3F803000, 0xBF808000,
    ]  # fmt: skip
    values = np.concatenate([np.array(special, np.uint32), near_ties, near_ties | np.uint32(0x80000000)])
    expected = precision.round(values.view(np.float32)).view(np.uint32)
    code = f"for (int k = 0; k < 16; k++) {{ const float x = mine[k]; mine[k] = __uint_as_float({code}); }}"
    np.testing.assert_array_equal(launched(code, values.reshape(32, 16)).reshape(-1), expected)
    nan = launched(code, np.full((32, 16), 0x7F800001, np.uint32)).view(np.float32)
    assert np.isnan(nan).all()


MMA = "float c[4] = {}; mma_tf32(c, 0, 0, 0, 0, 0, 0);"


@pytest.mark.parametrize("seed", range(3))
def test_a_lane_that_takes_no_part_is_found(seed: int) -> None:
    finding = faulty("at(1); if (t == 9) return; at(2); " + MMA, seed)
    assert finding.kind == "divergent barrier"
    assert {1, 2} <= set(finding.positions)
    assert "returned from the kernel" in finding.message
    assert faulty(f"if (t % 32 == 9) transposed_halves(t);\n{MMA}", seed).kind == "divergent barrier"


@pytest.mark.parametrize("seed", range(3))
def test_products_order_no_memory(seed: int) -> None:
    assert run(without(WARP_STAGING, "at(2); __syncwarp();", "at(2); " + MMA), seed).kinds == {"race"}
