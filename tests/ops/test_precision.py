"""Precisions: rounding of values, checked by different arithmetic, and each parameter's precision."""

from __future__ import annotations

import numpy as np
import pytest

import vpps
from vpps.model.precisions import ALL_EXACT, Precisions
from vpps.ops.precision import PRECISIONS, Precision
from vpps.reference import Reference, weights_of
from vpps.script.instructions import TABLE

pytestmark = pytest.mark.host

REDUCED = [p for p in PRECISIONS.values() if p.is_reduced]
BITS = {"bf16": 8, "tf32": 11}  # in a significand


def of_bits(*words: int) -> np.ndarray:
    return np.array(words, np.uint32).view(np.float32)


def rounded(x: np.ndarray, name: str) -> np.ndarray:
    """Round by arithmetic: float32 holds multiples of the last place's value."""
    _, exponent = np.frexp(x.astype(np.float64))
    place = np.ldexp(1.0, np.maximum(exponent, -125) - BITS[name])
    units = x.astype(np.float64) / place  # exact: a power of two
    whole = np.rint(units) if name == "bf16" else np.copysign(np.floor(np.abs(units) + 0.5), units)
    found = whole * place
    return np.where(np.abs(found) > np.finfo(np.float32).max, np.copysign(np.inf, x), found).astype(np.float32)


@pytest.mark.parametrize("precision", REDUCED, ids=lambda p: p.name)
def test_values_are_rounded_to_the_nearest(precision: Precision) -> None:
    """Covers all exponents, denormals too, with every tie and its neighbours, and values that overflow."""
    dropped = precision.dropped
    half, above = 1 << (dropped - 1), 1 << dropped
    kept = np.arange(0, 1 << 23, 1 << 19 | above, dtype=np.uint32) & np.uint32(~(above - 1) & 0xFFFFFFFF)
    ends = np.array([0, 1, half - 1, half, half + 1, above - 1, above | half], np.uint32)
    words = np.add.outer(np.arange(255, dtype=np.uint32) << 23, kept[:, None] | ends).ravel()
    words = np.append(words, np.uint32(0x7F7FFFFF))
    x = np.concatenate([words, words | np.uint32(1 << 31)]).view(np.float32)
    with np.errstate(over="ignore"):
        assert precision.round(x).tobytes() == rounded(x, precision.name).tobytes()
    assert np.isinf(precision.round(x[-1:]))


@pytest.mark.parametrize("precision", PRECISIONS.values(), ids=PRECISIONS)
def test_what_is_no_number_stays_so(precision: Precision) -> None:
    """A NaN remains NaN even if the bits that are kept mean infinity."""
    x = of_bits(0x7F800001, 0xFFFFFFFF, 0x7FC00000, 0x7F800000, 0xFF800000, 0x80000000)
    found = precision.round(x)
    assert np.isnan(found[:3]).all()
    assert found[3:].tobytes() == x[3:].tobytes()
    assert precision.round(found).tobytes() == found.tobytes()


def test_float64_is_rounded_to_float32_first() -> None:
    """Kernels have only float32: here the first rounding creates the tie."""
    assert PRECISIONS["bf16"].round(np.array([1 + 2**-8 + 2**-40])) == 1.0


def test_steps_to_the_next_tie_are_counted_at_the_largest_element() -> None:
    bf16 = PRECISIONS["bf16"]
    assert bf16.nearest_tie(of_bits(0x3F808000)[None]) == 0
    vectors = np.array([[0x3F807FFD, 0x3F800000], [0x40808000 - 9, 0x3F808005]], np.uint32).view(np.float32)
    assert [bf16.nearest_tie(v[None]) for v in vectors] == [3, 5 / 4]
    assert bf16.nearest_tie(vectors) == 5 / 4
    assert bf16.nearest_tie(np.array([[520.0, *of_bits(0x3F808000)]])) == 1 << 15  # too small to matter
    assert bf16.nearest_tie(np.array([[0.0, 1.0]])) == 1 << 15  # exact values
    assert bf16.nearest_tie(np.array([[1.5, np.inf], [np.nan, 1.0]])) == np.inf
    assert bf16.nearest_tie(np.zeros((0, 4))) == bf16.nearest_tie(np.zeros((2, 4))) == np.inf


# ---- each parameter's precision


def test_precisions_are_given_for_all_or_by_name() -> None:
    model = vpps.Model()
    W, V = model.parameter("W", (3, 3)), model.parameter("V", (3, 3))
    b, table = model.parameter("b", (3,)), model.lookup("E", (4, 3))
    for given, names in (
        ("bf16", ["bf16", "bf16"]),
        ({"*": "bf16", "V": "float32"}, ["bf16", "float32"]),
        ({"V": "tf32"}, ["float32", "tf32"]),
    ):
        precisions = Precisions.given(given)
        assert precisions.written == given
        assert [precisions.of(p).name for p in (W, V)] == names
        assert precisions.of(b) == precisions.of(table) == PRECISIONS["float32"]  # nothing multiplies by them
    assert Precisions.given("float32") == Precisions.given({}) == ALL_EXACT


def test_what_decides_nothing_is_not_reduced() -> None:
    assert not Precisions.given({"W": "3xtf32"}).is_reduced
    assert Precisions.given({"W": "3xtf32", "V": "tf32"}).is_reduced


def test_factors_of_products_are_rounded_and_nothing_else() -> None:
    """Master copies, moments, gradients, biases and sums are not rounded."""
    found = {(i.form, f.name) for i in TABLE for f in i.fields if f.rounded}
    forms = {"Matvec", "MatvecTransposed", "PackedMatmul", "PackedMatmulGradient", "Outer", "OuterUpdate", "OuterTiles"}
    assert {form for form, _ in found} == forms
    assert {name for _, name in found} == {"weights", "x", "dy"}


# ---- the reference


def test_the_reference_rounds_both_factors_of_a_product_forward_and_backward() -> None:
    """Computed manually, with few bits: 1 + 2^-9 becomes 1."""
    little = 2.0**-9
    model = vpps.Model()
    W = model.parameter("W", (2, 2), init=np.array([[1 + little, 2.0], [0.0, 3.0]]))
    b = model.parameter("b", (2,), init=np.array([little, 0.0]))
    graph = vpps.Graph()
    x = graph.input([1.0, 1 + little], grad=True)

    @vpps.cell
    def layer(x: vpps.Expression) -> vpps.Expression:
        return W @ x + b

    y = layer(x)
    weights = graph.input([1 + little, 1.0])  # the gradient of y
    loss = vpps.dot(y, weights)
    reference = Reference(graph, weights_of(model), precisions=Precisions.given("bf16"))
    gradients = reference.backward(loss)
    assert reference.value(y).tolist() == [3 + little, 3.0]  # the sum and the bias are exact
    assert gradients["W"].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert gradients["b"].tolist() == [1 + little, 1.0]  # no product
    assert reference.gradient(x).tolist() == [1.0, 5.0]
    assert reference.nearest_tie == 2**15 - 2**14
    exact = Reference(graph, weights_of(model), precisions=Precisions.given({"b": "bf16"}))
    assert exact.value(y).tolist() == [(1 + little) + 2 * (1 + little) + little, 3 * (1 + little)]
    assert exact.nearest_tie == np.inf
