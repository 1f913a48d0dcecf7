"""Whether the compiled planner says of rows and memory what the planner in NumPy does; gone with that."""

from __future__ import annotations

from typing import Any

import numpy as np

from vpps.plan.instr import Beside, BesideGradient
from vpps.plan.plan import Plan


def assert_same_map(plan: Plan, in_numpy: Plan) -> None:
    """Rows, and the layout for the verifier, are NumPy's."""
    training = plan.loss_slot >= 0
    for mine, theirs in zip(plan.blocks, in_numpy.blocks, strict=True):
        _assert_same_block(mine, theirs, training)
    layout, expected = plan.layout, in_numpy.layout
    for name in ("n_vps", "groups", "panel", "pool_floats", "knows"):
        assert getattr(layout, name) == getattr(expected, name), name
    for name in ("periods", "unwritten", "lists"):
        assert np.array_equal(getattr(layout, name), getattr(expected, name)), name
    assert sorted(layout.memory.tolist()) == sorted(expected.memory.tolist())


def _assert_same_block(mine: Any, theirs: Any, training: bool) -> None:
    assert mine.arrays.block is theirs.arrays.block
    assert mine.arrays.cell.name == theirs.arrays.cell.name
    assert len(mine.arrays.cell.nodes) == len(theirs.arrays.cell.nodes)
    assert mine.arrays.calls.tolist() == theirs.arrays.calls.tolist()
    assert [v.tolist() for v in mine.arrays.values] == [v.tolist() for v in theirs.arrays.values]
    for name in ("order", "step_stage", "step_group", "first", "count"):
        assert np.array_equal(getattr(mine, name), getattr(theirs, name)), name
    for name in ("n_needed", "n_needed_steps", "pause", "late"):
        assert getattr(mine, name) == getattr(theirs, name), name
    assert [mine.n_rows(d) for d in range(mine.count.shape[1])] == [
        theirs.n_rows(d) for d in range(theirs.count.shape[1])
    ]
    n_slabs = len(theirs.cell.lowered.slabs)
    assert np.array_equal(mine.bases, theirs.bases[:, :n_slabs])
    keys = list(theirs.cell.keys)[: None if training else theirs.cell.n_forward_keys]
    assert list(mine.cell.keys)[: len(keys)] == keys
    for key in keys if len(theirs.order) else ():
        if not isinstance(key, Beside | BesideGradient):
            assert mine.list_position(key) == theirs.list_position(key)
    assert list(mine.cell.operands) == list(theirs.cell.operands)
    for operand in theirs.cell.operands:
        for a, b in zip(mine.operand_words(operand), theirs.operand_words(operand), strict=True):
            assert np.array_equal(a, b)
