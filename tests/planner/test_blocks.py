"""What a plan says of the rows of its cells agrees with the graph, with where values lie, and with the script."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tests.planner import golden, launches
from vpps.compiler.instr import Args
from vpps.planner.blocks import PlannedBlock
from vpps.planner.plan import Plan
from vpps.record.arrays import BlockArrays, Ints
from vpps.script.instructions import INDEXED, OFFSET_MASK

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize("name", golden.NAMES[::4])
def test_rows_are_those_of_the_graph(name: str) -> None:
    """With any schedule and number of groups; of training, where the values of all vertices stay."""
    it, random = golden.example(name), Random(name)
    operands = 0
    for c in random.sample(golden.configurations(name), 4):
        plan = next(launches.plans(it, c))
        assert {b.arrays.block for b in plan.blocks} == set(it.graph.blocks.values())
        for b in plan.blocks:
            check_steps(b)
            check_addresses(plan, b)
            operands += check_operands(plan, b)
    assert operands


def check_steps(b: PlannedBlock) -> None:
    """Every vertex is in one row, every row of any domain in one step; those that run backward come first."""
    assert sorted(b.order) == list(range(len(b.arrays.calls)))
    assert np.array_equal(b.first, np.cumsum(b.count, axis=0) - b.count)
    assert b.n_rows(0) == len(b.order)
    assert (b.count[:, 0] > 0).all()
    assert b.count[: b.n_needed_steps, 0].sum() == b.n_needed
    same_side = np.diff(np.arange(len(b.step_stage)) >= b.n_needed_steps) == 0
    ordered = (np.diff(b.step_group) > 0) | ((np.diff(b.step_group) == 0) & (np.diff(b.step_stage) > 0))
    assert ordered[same_side].all()


def check_addresses(plan: Plan, b: PlannedBlock) -> None:
    """Values are in the slabs of their cell, row by row."""
    steps = np.repeat(np.arange(len(b.count)), b.count[:, 0])
    for ids, view in zip(b.arrays.values, b.cell.lowered.outputs, strict=True):
        if view.slab < 0 or (len(ids) and ids[0] >= len(plan.addresses)):  # the latter cross between parts
            continue
        width = b.cell.lowered.slabs[view.slab].width
        expected = b.bases[steps, view.slab] + np.arange(len(steps)) * width + view.offset
        assert np.array_equal(plan.addresses[ids[b.order]], expected)


def check_operands(plan: Plan, b: PlannedBlock) -> int:
    """Rows of arguments are found where their values lie, at a stride or through a list; returns how many are."""
    if b.arrays.cell is not b.arrays.block.cell:
        return 0  # a part, whose arguments are others
    args = BlockArrays(b.arrays.block).args[b.order]
    found = 0
    for operand in b.cell.operands:
        if not isinstance(operand.key, Args):
            continue
        values = args[:, b.cell.vector_index[operand.key.position]]
        expected = plan.addresses[values] + operand.offset
        starts, counts = (b.first[:, 0], b.count[:, 0]) if not operand.whole else (np.zeros(1, int), [len(values)])
        for start, count, word, mode in zip(starts, counts, *b.operand_words(operand), strict=False):
            rows = expected[start : start + count]
            assert np.array_equal(rows_found(plan, int(word), int(mode), int(count)), rows)
            even = len(set(np.diff(rows))) <= 1 and (count < 2 or 0 <= rows[1] - rows[0] <= OFFSET_MASK)
            assert bool(mode & INDEXED) != even
            found += 1
    return found


def rows_found(plan: Plan, word: int, mode: int, count: int) -> Ints:
    """The addresses that the two words of an operand say."""
    if mode & INDEXED:
        return plan.script[word : word + count].astype(np.int64) + (mode & OFFSET_MASK)
    return word + np.arange(count) * mode
