"""Primitives of a cell in batches: every batching can run, and what it would copy is counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vpps
from tests.compiler.passes.cells import traced
from tests.planner.test_random_graphs import examples
from vpps.compiler.passes.cell_layout import Copies, study
from vpps.compiler.passes.primitives import Primitives

H = 4

operations = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=14)


@examples(60)
@given(drawn=operations, one_vector=st.booleans())
def test_every_batching_can_run(drawn: list[tuple[int, int, int]], one_vector: bool):
    model = vpps.Model()
    matrices = [model.parameter(f"W{k}", (H, H)) for k in range(3)]
    b = model.parameter("b", (H,))

    def cell(x: vpps.Expression, y: vpps.Expression) -> list[vpps.Expression]:
        values = [x, y]
        for kind, i, j in drawn:
            u, v = values[i % len(values)], values[j % len(values)]
            made = (u + v, u * v, vpps.tanh(u), vpps.concat([u[1:], v[:1]]), u + b, *(W @ u for W in matrices))[kind]
            values.append(made)
        return values[-3:]

    primitives = Primitives(traced(cell, (H,), (H,)), one_vector)
    batchings = primitives.batchings()
    assert (len(batchings) == 0) == (not primitives.nodes)
    for batching in batchings:
        run: set[int] = set()
        for batch in batching.batches:
            assert len({primitives.type_of[i] for i in batch}) == 1
            for i in batch:
                assert all(j in run for j in primitives.operands(i) if j in primitives.type_of)
            run.update(batch)
        assert sorted(run) == primitives.nodes
        assert sum(map(len, batching.batches)) == len(primitives.nodes)
    assert len({frozenset(batching.batches) for batching in batchings}) == len(batchings)
    found = study(primitives.cell, 3, one_vector)
    assert (found is None) == (not primitives.nodes)
    if found is not None:
        assert found.laid_out.operations <= found.declared.operations
        assert found.laid_out.bytes <= found.declared.bytes


@pytest.mark.parametrize("one_vector, kept", [(True, 0), (False, 2 * 3 * H * 4)])
def test_gates_declared_apart_are_not_copied(one_vector: bool, kept: int):
    """Parameters are one for all vertices. A vector that several products read is copied for each, unless they are one
    product."""
    model = vpps.Model()
    W = [model.parameter(f"W{k}", (H, H)) for k in range(2)]
    b = [model.parameter(f"b{k}", (H,)) for k in range(2)]
    cell = traced(lambda x: tuple(vpps.tanh(W[k] @ x + b[k]) for k in (1, 0)), (H,))
    found = study(cell, rows=3, one_vector=one_vector)
    assert found is not None
    assert (found.primitives, len(found.batching.batches)) == (6, 3)
    parameters = 2 * (H * H + H) * 4
    operations = 0 if one_vector else 1
    assert found.declared == Copies(operations + 2, kept + parameters)
    assert found.laid_out == Copies(operations, kept)


def test_slices_of_one_value_lie_where_they_are():
    model = vpps.Model()
    W = model.parameter("W", (3 * H, H))

    def cell(x: vpps.Expression) -> list[vpps.Expression]:
        a, b, c = vpps.split(W @ x, 3)
        return [vpps.tanh(a), vpps.tanh(b), vpps.tanh(c)]

    def crossed(x: vpps.Expression) -> list[vpps.Expression]:
        a, b, c = vpps.split(W @ x, 3)
        return [vpps.tanh(a), vpps.tanh(c), vpps.sigmoid(b)]

    for function, copied in ((cell, Copies(0, 0)), (crossed, Copies(1, 2 * H * 4))):
        found = study(traced(function, (H,)), rows=1)
        assert found is not None
        assert found.laid_out == copied
