"""Batches of a cell's primitives: every batching can run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import vpps
from tests.compiler.passes.cells import traced
from tests.planner.test_random_graphs import examples
from vpps.compiler.passes.primitives import Primitives

H = 4

operations = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=14)


@examples(60)
@given(drawn=operations)
def test_every_batching_can_run(drawn: list[tuple[int, int, int]]):
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

    primitives = Primitives(traced(cell, (H,), (H,)))
    batchings = primitives.batchings()
    assert (len(batchings) == 0) == (not primitives.nodes)
    for batching in batchings:
        run: set[int] = set()
        for batch in batching:
            assert len({primitives.type_of[i] for i in batch}) == 1
            for i in batch:
                assert all(j in run for j in primitives.operands(i) if j in primitives.type_of)
            run.update(batch)
        assert sorted(run) == primitives.nodes
        assert sum(map(len, batching)) == len(primitives.nodes)
    assert len({frozenset(batching) for batching in batchings}) == len(batchings)
