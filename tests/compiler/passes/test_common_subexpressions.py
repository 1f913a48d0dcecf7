"""Common subexpressions: equal expressions are computed once, and all others are kept."""

from __future__ import annotations

import pytest

import vpps
from tests.compiler.passes.cells import operations, traced
from vpps.compiler.passes.common_subexpressions import common_subexpressions

H = 20


def test_equal_products_and_gates_are_one():
    W = vpps.Model().parameter("W", (H, H))
    cell = traced(lambda x: (vpps.tanh(W @ x) * vpps.sigmoid(x), vpps.tanh(W @ x)), (H,))
    found, said = common_subexpressions(cell)
    assert sorted(operations(found)) == ["affine", "mul", "sigmoid", "tanh"]
    assert said == "duplicates removed: 1 @, 1 tanh"
    assert found.outputs[1] == 2  # the first tanh
    assert len(found.nodes) == len(cell.nodes)
    assert operations(cell).count("tanh") == 2  # the user's program is unchanged


@pytest.mark.parametrize("op, once", [(vpps.dot, True), (vpps.maximum, False), (vpps.minimum, False)])
def test_operands_are_exchanged_where_no_bit_changes(op, once):
    cell = traced(lambda x, y: (op(x, y), op(y, x), x + y, y + x, x - y, y - x, x * y, y * x), (H,), (H,))
    expected = ["add", "mul", "sub", "sub"] + [op.__name__] * (1 if once else 2)
    assert sorted(operations(common_subexpressions(cell)[0])) == sorted(expected)


def test_equal_lookups_and_parameters_are_one():
    model = vpps.Model()
    E, b = model.lookup("E", (9, H)), model.parameter("b", (H,))
    cell = traced(lambda w, v: vpps.lookup(E, w) * b + (vpps.lookup(E, w) * b) * vpps.lookup(E, v), int, int)
    assert operations(common_subexpressions(cell)[0]) == ["lookup", "mul", "lookup", "mul", "add"]


def test_constants_are_told_apart_by_their_bits():
    cell = traced(lambda x: (x + 0.0, x + -0.0, x * 2, x * 2.0, vpps.clamp(x, low=0.0), x + 0.0), (H,))
    found, _ = common_subexpressions(cell)
    assert operations(found) == ["shift", "shift", "scale", "at_least"]
    assert found.outputs[0] == found.outputs[5]


def test_every_dropout_has_its_own_numbers():
    cell = traced(lambda x: vpps.dropout(x, 0.5) + vpps.dropout(x, 0.5), (H,))
    found, said = common_subexpressions(cell)
    assert found is cell
    assert said == "no duplicate operations"


def test_maps_over_lists_of_one_length_are_one():
    W = vpps.Model().parameter("W", (H, H))

    def attend(q, hs):
        keys = vpps.each(lambda h: W @ h, hs)
        again = vpps.each(lambda h: W @ h, hs)
        return vpps.sum(vpps.each(lambda k, a: k * vpps.dot(a, q), keys, again)) + vpps.sum(again)

    cell = traced(attend, (H,), [(H,)])
    assert sorted(operations(common_subexpressions(cell)[0])) == ["add", "affine", "dot", "list_sum", "list_sum", "mul"]
