"""Slots of fragments for tensor cores: what the planner does with matrices whose products round what they multiply."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.placement.test_onchip import H200, square, tiers, tree_lstm
from vpps.errors import HandleError
from vpps.kernel.chip import FRAGMENT_ROWS, KINDS, sums_of
from vpps.ops.precision import PRECISIONS
from vpps.placement.onchip import (
    DEVICES,
    MatrixSpec,
    OnChip,
    capacity,
    explain,
    known_device,
    plan_onchip,
    step_down,
    valid_rpw,
)
from vpps.placement.onchip import ChipOptions as Options
from vpps.placement.onchip.device import TENSOR_CORES
from vpps.placement.onchip.slots import Ownership, shapes
from vpps.tuning.candidates import rows_per_warp

pytestmark = pytest.mark.host

IN_TURNS = Options(ownership="round-robin")
REDUCED = tuple(name for name in PRECISIONS if name != "float32")
BF16 = PRECISIONS["bf16"].element


def reduced(matrices: list[MatrixSpec], precision: str = "bf16") -> list[MatrixSpec]:
    return [dataclasses.replace(m, element=PRECISIONS[precision].element) for m in matrices]


def check_room(plan: OnChip) -> None:
    """No two things that are alive at a time share a register or unit of shared memory, and all are there."""
    chip = plan.chip
    for in_registers, end in ((True, chip.registers), (False, chip.shared_units)):
        slots = [slot for slot in chip.slots if slot.in_registers == in_registers]
        spans = sorted((slot.at, slot.at + slot.size) for slot in slots)
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
        assert max((stop for _, stop in spans), default=0) == end
        assert all(slot.floats == slot.size for slot in slots if slot.keeps_gradient)
    assert chip.registers <= plan.device.registers
    assert chip.shared_bytes - 4 * (2048 + 516) <= plan.device.shared
    assert chip.staged >= 256 * max((slot.passed for slot in chip.slots), default=0)


@pytest.mark.parametrize("precision", REDUCED)
def test_slots_hold_whole_fragments_in_the_registers_of_their_type(precision: str) -> None:
    element = PRECISIONS[precision].element
    for rows_owned, columns in ((10, 512), (4, 1280), (33, 100), (200, 64)):
        for shape in shapes(rows_owned, columns, None, element):
            if shape.element != element:
                assert (precision, shape.element) == ("3xtf32", KINDS[0])
                continue
            assert shape.rows % FRAGMENT_ROWS == 0
            assert shape.slots * shape.rows * 8 // shape.warps >= rows_owned
            assert shape.width >= columns
            assert shape.registers * 4 == shape.slots * shape.rows * shape.columns * element.bytes
    plan = plan_onchip(reduced([square("A", 1024, role_t_parts=0)], precision), H200, 64)
    assert {slot.element for slot in plan.chip.slots} == {element}
    assert f"KIND = {KINDS.index(element)}" in str(plan.chip.slots[0])


def test_vectors_begin_where_four_loads_meet_no_bank_twice() -> None:
    assert plan_onchip(reduced(tree_lstm(256)), H200, 132).chip.stage == 1280 + 8
    assert plan_onchip(tree_lstm(256), H200, 132).chip.stage == 1280


def test_tensor_cores_are_faster_by_what_they_multiply() -> None:
    """The least time of a vertex, in multiply-adds of a thread: U of 256 units on an H200."""
    cost = {name: shapes(10, 512, None, p.element)[0].cost for name, p in PRECISIONS.items()}
    assert cost["bf16"] < cost["tf32"] < cost["3xtf32"] < cost["float32"]
    assert 3 * cost["bf16"] <= cost["float32"]


def test_pairs_of_tf32_and_float32_are_weighed_against_each_other() -> None:
    """4 rows of U^T would be a quarter of a fragment; neither rounds anything."""
    plan = plan_onchip(reduced(tree_lstm(256), "3xtf32"), H200, 132)
    kinds = {held.name: held.shape.element for held in plan.held if held.shape}
    assert (kinds["U"], kinds["U^T"]) == (PRECISIONS["3xtf32"].element, KINDS[0])
    assert set(tiers(plan).values()) == {"registers", "L2"}
    assert {held.name for held in plan.held if held.tier == "L2"} == {"Wo", "Wo^T"}
    check_room(plan)


def test_matrices_of_two_kinds_share_a_kernel() -> None:
    u, w, _ = tree_lstm(256)
    plan = plan_onchip([*reduced([u]), w], H200, 132)
    kinds = {held.name: {plan.chip.slots[s].element for s in held.slots} for held in plan.held}
    assert kinds == {"U": {BF16}, "U^T": {BF16}, "W": {KINDS[0]}, "W^T": {KINDS[0]}}
    assert plan.of("W").shape == plan_onchip([u, w], H200, 132).of("W").shape
    check_room(plan)


sizes = st.integers(1, 900)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    matrices=st.lists(
        st.tuples(sizes, sizes, st.sampled_from(list(PRECISIONS)), st.booleans(), st.booleans()), min_size=1, max_size=4
    ),
    device=st.sampled_from([d.name for d in DEVICES.values() if d.sm >= TENSOR_CORES]),
    ownership=st.sampled_from(["aligned", "round-robin"]),
)
def test_no_two_live_things_share_a_register(
    matrices: list[tuple[int, int, str, bool, bool]], device: str, ownership: Ownership
) -> None:
    specs = [
        MatrixSpec(f"M{k}", rows, columns, 1, int(transposed), trained, element=PRECISIONS[precision].element)
        for k, (rows, columns, precision, transposed, trained) in enumerate(matrices)
    ]
    options = Options(ownership=ownership)
    plan = plan_onchip(specs, known_device(device), 40, options)
    check_room(plan)
    again = plan_onchip(specs, known_device(device), 40, options)
    assert (again.chip, again.held) == (plan.chip, plan.held)


@pytest.mark.parametrize("precision", REDUCED)
def test_what_tensor_cores_cannot_do_is_refused(precision: str) -> None:
    matrices = reduced(tree_lstm(256), precision)
    with pytest.raises(HandleError, match=rf"rpw=9: matrix 'U' has the precision {precision}, .* try rpw=16"):
        plan_onchip(matrices, H200, 132, Options(ownership="round-robin", rpw=9))


def test_rows_are_dealt_in_turns_by_whole_fragments() -> None:
    matrices = reduced([square("A", 256), square("B", 128)])
    plan = plan_onchip(matrices, H200, 132, Options(ownership="round-robin"))
    assert {slot.rows % FRAGMENT_ROWS for slot in plan.chip.slots} == {0}
    assert valid_rpw(256, 192, BF16) == range(FRAGMENT_ROWS, 49, FRAGMENT_ROWS)
    tried = rows_per_warp(plan_onchip(matrices, H200, 132))
    assert tried
    assert {rpw % FRAGMENT_ROWS for rpw in tried} == {0}


@pytest.mark.parametrize("precision", REDUCED)
@pytest.mark.parametrize("hidden", [256, 512, 640])
def test_every_step_down_is_smaller(precision: str, hidden: int) -> None:
    """Vertices stay where there are fragments alone: tensor cores take 8 all the same."""
    plan = plan_onchip(reduced(tree_lstm(hidden), precision), H200, 132)
    plans = [plan, *step_down(plan)]
    if all(slot.element != KINDS[0] for slot in plan.chip.slots):
        assert plans[1].chip.tile == plan.chip.tile
    sums = [max((sums_of(s.rows, p.chip.tile, s.element) for s in p.chip.slots), default=0) for p in plans]
    found = [(p.chip.registers > 0, p.chip.registers, n) for p, n in zip(plans, sums, strict=True)]
    assert all(before >= after for before, after in pairwise(found))
    assert found[-1][0] is False
    assert len({p.to_key() for p in plans}) == len(plans)
    for each in plans:
        check_room(each)


def test_bf16_holds_about_twice_the_weights() -> None:
    """Of matrices whose rows are no padding: 16 to a block."""

    def held(precision: str) -> int:
        names = "ABCDEFGHIJKLMNOP"
        specs = reduced([MatrixSpec(n, 16 * 132, 256, 1, 0, trained=False) for n in names], precision)
        return sum(tier == "registers" for tier in tiers(plan_onchip(specs, H200, 132)).values())

    assert (held("float32"), held("bf16")) == (12, 16)


def test_a_table_says_what_is_in_slots() -> None:
    text = explain(plan_onchip(reduced(tree_lstm(256)), H200, 132))
    assert f"x ({FRAGMENT_ROWS}," in text
    assert ") bf16 " in text


def test_capacity_is_the_most_that_stays() -> None:
    matrices = tree_lstm(256)[:2]
    in_registers, on_chip = capacity(matrices, H200, 256)
    assert in_registers <= on_chip
    for most, names in ((in_registers, {"registers"}), (on_chip, {"registers", "shared"})):
        assert set(tiers(plan_onchip(tree_lstm(most, most)[:2], H200, 132)).values()) <= names
        assert not set(tiers(plan_onchip(tree_lstm(most + 16, most + 16)[:2], H200, 132)).values()) <= names
