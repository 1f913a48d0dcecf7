"""Places of weights on a GPU: windows, homes in registers, slots of the published scheme, smaller plans."""

from __future__ import annotations

import dataclasses
import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vpps.errors import CapacityError, HandleError
from vpps.kernel.chip import KERNEL_SHARED, MOST_CHAINED_ROWS, padded, pitch_of
from vpps.ops.element import BFLOAT16, FLOAT32
from vpps.ops.precision import PRECISIONS
from vpps.placement.onchip import DEVICES, MatrixSpec, OnChip, capacity, explain, known_device, valid_rpw
from vpps.placement.onchip import ChipOptions as Options
from vpps.placement.onchip.device import TENSOR_CORES
from vpps.placement.onchip.holding import NARROW, NARROW_ROWS, ROW_SLICED, Ownership
from vpps.placement.onchip.planner import nothing_left, plan_groups, plan_onchip, step_down
from vpps.script.slices import unit_owners
from vpps.tuning.candidates import rows_per_warp

pytestmark = pytest.mark.host

H200 = known_device("H200")
T4 = known_device("T4")
PAIR = dataclasses.replace(known_device("RTX 3090"), sms=2, shared_per_block=64 << 10)
IN_TURNS = Options(ownership="round-robin")
REDUCED = tuple(name for name in PRECISIONS if name != "float32")


def tree_lstm(hidden: int, words: int = 256, classes: int = 5) -> list[MatrixSpec]:
    """Matrices of a binary tree LSTM: U for two children, W for words, and an output layer."""
    return [
        MatrixSpec("U", 5 * hidden, 2 * hidden, parts=5, role_t_parts=2),
        MatrixSpec("W", 3 * hidden, words, parts=3),
        MatrixSpec("Wo", classes, hidden),
    ]


def square(name: str, size: int, **changes: object) -> MatrixSpec:
    return dataclasses.replace(MatrixSpec(name, size, size), **changes)  # type: ignore[arg-type]


def reduced(matrices: list[MatrixSpec], precision: str = "bf16") -> list[MatrixSpec]:
    return [dataclasses.replace(m, element=PRECISIONS[precision].element) for m in matrices]


def tiers(plan: OnChip) -> dict[str, str]:
    return {held.name: held.tier for held in plan.held}


def check_room(plan: OnChip) -> None:
    """Assert that live data does not overlap, that all of it is placed, and that lanes read different banks."""
    chip = plan.chip
    assert chip.registers <= min(plan.registers, plan.device.registers)
    assert chip.shared_bytes - KERNEL_SHARED <= plan.device.shared
    spans = [(m.home, m.home + m.registers) for m in chip.homes] + [(s.at, s.end) for s in chip.slots]
    assert all(before[1] <= after[0] for before, after in pairwise(sorted(spans)))
    assert max((end for _, end in spans), default=0) == chip.registers
    windows = {window: [m for m in chip.dense if m.window == window] for window in {m.window for m in chip.dense}}
    assert sorted(windows) == list(range(len(windows)))
    ranges = [(ms[0].at, max(m.end for m in ms)) for _, ms in sorted(windows.items())]
    assert all(before[1] <= after[0] for before, after in pairwise(ranges))
    assert all({m.at for m in ms} == {ms[0].at} for ms in windows.values())
    for ms in windows.values():
        assert sum(m.home == m.IN_WINDOW for m in ms) == any(not m.chunk and not m.is_at_home for m in ms)
    for m in chip.dense:
        held = plan.held[[h.number for h in plan.held].index(m.number)]
        owned = np.bincount(unit_owners(held.rows, held.parts, 1, plan.vps), minlength=plan.vps)
        assert (owned.max(), held.columns, held.matrix.element) == (m.rows, m.columns, m.element)
        assert m.pitch % 4 == 0
        assert 4 * m.window_quads <= m.pitch
        assert m.pitch * 4 >= (m.chunk or padded(m.columns, m.element)) * (2 if m.element == BFLOAT16 else 4)
        assert len({m.pitch * r % 32 for r in range(8)}) == (2 if m.element == BFLOAT16 else 8)
        assert m.home != m.IN_WINDOW or not m.chunk
        for number in m.tiles:
            tile = chip.product_tiles[number]
            assert tile.element == m.element
            assert tile.sums <= chip.sums
            assert m.rows > MOST_CHAINED_ROWS or tile.all_vectors * m.rows <= max(chip.results, 8 * m.rows)
        assert m.tiles == tuple(sorted(m.tiles, key=lambda t: chip.product_tiles[t].all_vectors))
        assert m.chunk in (0, chip.chunk_columns)
    assert not chip.dense or chip.chunk_floats >= 2 * chip.most_vectors * pitch_of(chip.chunk_columns)
    assert chip.windows_at % 4 == 0
    for s in chip.slots:
        assert s.rows * chip.tile <= 64 or chip.tile == 1  # sums per thread


# Windows


def test_a_tree_lstm_of_256_units_has_a_window_for_each_matrix() -> None:
    plan = plan_onchip(tree_lstm(256)[:2], H200, 132)
    assert set(tiers(plan).values()) == {"shared"}
    assert [(m.rows, m.columns, m.window) for m in plan.chip.dense] == [
        (10, 512, 0), (4, 1280, 1), (6, 256, 2), (2, 768, 3),
    ]  # fmt: skip
    assert plan.chip.registers == 0
    check_room(plan)


def test_transposes_of_four_groups_take_the_windows_of_their_matrices() -> None:
    """Each transpose is loaded once, when backward begins."""
    plan = plan_onchip(tree_lstm(256), H200, 33, Options(groups=4))
    assert {m.what.split()[0]: (m.window, m.home) for m in plan.chip.dense} == {
        "U": (0, -1), "U^T": (0, -2), "W": (1, -1), "W^T": (1, -2),
    }  # fmt: skip
    assert (plan.of("U^T").tier, plan.of("U^T").copies, plan.chip.registers) == ("shared", 4, 0)
    check_room(plan)


def test_matrices_that_do_not_fit_side_by_side_share_one_window() -> None:
    """Some matrices are refilled from registers, the others from memory."""
    plan = plan_onchip(tree_lstm(512, 512), known_device("A100"), 108)
    assert {m.what.split()[0]: (m.window, min(m.home, 0)) for m in plan.chip.dense} == {
        "U": (0, -1), "U^T": (0, -2), "W": (0, 0), "W^T": (0, 0),
    }  # fmt: skip
    assert {h.name for h in plan.held if h.place.refilled} == {"U", "U^T"}
    assert "through L2     20 MiB of weights" in explain(plan)
    check_room(plan)


def test_a_window_may_have_room_for_a_chunk() -> None:
    plan = plan_onchip(tree_lstm(256), T4, 40)
    assert {m.what.split()[0]: (m.chunk, min(m.home, 0)) for m in plan.chip.dense} == {
        "U": (128, 0), "U^T": (128, -2), "W": (128, -2), "W^T": (128, -2),
    }  # fmt: skip
    assert (plan.of("U").tier, plan.chip.chunk_columns) == ("registers", 128)
    check_room(plan)


def test_a_matrix_of_too_many_rows_stays_in_memory() -> None:
    plan = plan_onchip([MatrixSpec("A", 1 << 18, 512), square("B", 512)], H200, 132)
    assert {name for name, tier in tiers(plan).items() if tier == "L2"} == {"A"}
    assert plan.of("A").place.reason == "a block's 1986 rows are too many for 216 KiB of shared memory"


def test_a_narrow_output_layer_divides_vertices() -> None:
    plan = plan_onchip(tree_lstm(256), H200, 132)
    assert (plan.of("Wo").tier, plan.of("Wo").place.reason) == ("L2", ROW_SLICED)
    assert (plan.of("Wo^T").tier, plan.of("Wo^T").place.reason) == ("L2", NARROW_ROWS)  # 256 rows of 5 columns
    wide = [MatrixSpec("Wo", NARROW, 256)]
    assert plan_onchip(wide, H200, 132).of("Wo^T").tier == "shared"  # its rows are dealt like those of other matrices
    assert plan_onchip([MatrixSpec("V", 66, 64)], H200, 132).of("V").tier == "shared"
    assert plan_onchip([MatrixSpec("V", 65, 64)], H200, 132).of("V").tier == "L2"


def test_inference_and_force_leave_roles_out() -> None:
    inference = [dataclasses.replace(m, role_t_parts=0, trained=False) for m in tree_lstm(256)]
    assert set(tiers(plan_onchip(inference, H200, 132))) == {"U", "W", "Wo"}
    forced = plan_onchip(tree_lstm(256), H200, 132, Options(tiers={"U": "L2"}))
    assert (forced.of("U").tier, forced.of("U").place.reason, forced.of("U^T").tier) == ("L2", "forced to L2", "shared")


def test_bf16_takes_half_the_room() -> None:
    matrices = tree_lstm(256)[:2]
    sizes = {p: plan_onchip(reduced(matrices, p), H200, 132).chip.window_floats for p in ("float32", "tf32", "bf16")}
    assert sizes["float32"] == sizes["tf32"]
    assert 0.5 <= sizes["bf16"] / sizes["float32"] < 0.54


def test_matrices_of_two_kinds_share_a_kernel() -> None:
    u, w, _ = tree_lstm(256)
    plan = plan_onchip([*reduced([u]), w], H200, 132)
    assert [m.element for m in plan.chip.dense] == [BFLOAT16, BFLOAT16, FLOAT32, FLOAT32]
    check_room(plan)


sizes = st.integers(1, 900)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    matrices=st.lists(
        st.tuples(sizes, sizes, st.sampled_from(list(PRECISIONS)), st.booleans(), st.booleans()), min_size=1, max_size=4
    ),
    device=st.sampled_from([d.name for d in DEVICES.values() if d.sm >= TENSOR_CORES]),
    ownership=st.sampled_from(["aligned", "round-robin"]),
    groups=st.sampled_from([1, 2, 4]),
)
def test_no_two_live_things_share_a_place(
    matrices: list[tuple[int, int, str, bool, bool]], device: str, ownership: Ownership, groups: int
) -> None:
    specs = [
        MatrixSpec(f"M{k}", rows, columns, 1, int(transposed), trained)
        if ownership == "round-robin"
        else MatrixSpec(f"M{k}", rows, columns, 1, int(transposed), trained, PRECISIONS[precision].element)
        for k, (rows, columns, precision, transposed, trained) in enumerate(matrices)
    ]
    options = Options(ownership=ownership, groups=1 if ownership == "round-robin" else groups)
    plan = plan_onchip(specs, known_device(device), 40 // groups, options)
    for each in (plan, *step_down(plan)):
        check_room(each)
    assert plan_onchip(specs, known_device(device), 40 // groups, options) == plan


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("hidden", [64, 256, 512, 768, 1024])
def test_a_plan_never_takes_more_than_there_is(device: str, hidden: int) -> None:
    gpu = known_device(device)
    for options in (Options(), IN_TURNS):
        check_room(plan_onchip(tree_lstm(hidden), gpu, gpu.sms, options))


# The published scheme


def test_the_paper_allows_six_rows_per_warp_of_1024_columns() -> None:
    assert valid_rpw(1024, H200.registers) == range(1, 7)
    assert not valid_rpw(32 * 193, 192)


def test_rows_in_turns_are_in_registers_and_transposed_products_are_partial_sums() -> None:
    plan = plan_onchip(tree_lstm(256), H200, 132, IN_TURNS)
    assert {name: tiers(plan)[name] for name in ("U", "U^T", "W", "W^T")} == {
        "U": "registers", "U^T": "atomic", "W": "registers", "W^T": "atomic",
    }  # fmt: skip
    assert (plan.of("U^T").copies, plan.of("U").turn) == (0, 8 * plan.chip.slots[0].rows)
    check_room(plan)


def test_large_matrices_come_first_to_registers() -> None:
    plan = plan_onchip([square("A", 2048), square("B", 512)], H200, 132, IN_TURNS)
    assert tiers(plan) == {"A": "registers", "A^T": "atomic", "B": "registers", "B^T": "atomic"}
    larger = plan_onchip([square("A", 4096), square("B", 512)], H200, 132, IN_TURNS)
    assert tiers(larger) == {"A": "L2", "A^T": "L2", "B": "registers", "B^T": "atomic"}
    assert "192 registers do not suffice" in larger.of("A").place.reason


def test_round_robin_gives_the_makespan_that_alignment_avoids() -> None:
    """1280 rows in blocks of 16: four processors get 3 blocks, the others 2."""
    rows = np.bincount(unit_owners(1280, 16, 1, 38, turns=True))
    aligned = np.bincount(unit_owners(1280, 5, 1, 38))
    assert rows.max() == 48
    assert aligned.max() == 35


def test_a_matrix_is_dealt_from_where_the_one_before_it_ended() -> None:
    plan = plan_onchip([square("A", 80), square("B", 80)], H200, 4, Options(ownership="round-robin", rpw=2))
    assert [plan.of(name).first_vp for name in "AB"] == [0, 1]  # five pieces of 16 rows


def test_rows_per_warp_are_tried_for_float32_alone() -> None:
    assert rows_per_warp(plan_onchip(tree_lstm(256), H200, 132)) == list(range(1, 13))
    assert rows_per_warp(plan_onchip(reduced(tree_lstm(256)), H200, 132)) == []


# Options


REFUSED: list[tuple[list[MatrixSpec], Options, type[Exception], str]] = [
    (tree_lstm(256), Options(groups=0), HandleError, "groups=0"),
    (tree_lstm(256), Options(ownership="rows"), HandleError, "ownership='rows': expected 'aligned' or 'round-robin'"),  # type: ignore[arg-type]
    (tree_lstm(256), Options(rpw=2), HandleError, "rpw=2: rows per warp belong to ownership='round-robin'"),
    (tree_lstm(256), Options(ownership="round-robin", groups=2), HandleError, "the published scheme has one group"),
    (reduced(tree_lstm(256)), IN_TURNS, HandleError, "matrix 'U' has the precision bf16, and the published scheme"),
    (tree_lstm(256), Options(tiers={"X": "L2"}), HandleError, r"no such matrix; there are U, U\^T, W, W\^T, Wo, Wo\^T"),
    (tree_lstm(256), Options(tiers={"U": "shared"}), HandleError, r"tiers=\{'U': 'shared'\}: expected 'L2'"),  # type: ignore[dict-item]
    (tree_lstm(256), Options(groups=2), HandleError,
     "2 groups of 132 blocks do not run side by side .* at most 66 per group"),
    ([MatrixSpec("A", 10, 8, parts=3)], Options(), HandleError, "'A' of shape 10x8: 3 parts must divide its rows"),
    ([square("A", 64), square("A", 128)], Options(), HandleError, "repeated: A"),
    ([square("A", 1024)], Options(ownership="round-robin", rpw=7), CapacityError,
     "rpw=7: rows of up to 1024 columns take 32 registers each .*valid: 1 to 6"),
    ([square("A", 8192)], Options(ownership="round-robin", rpw=1), CapacityError, "valid: none: leave ownership"),
]  # fmt: skip


@pytest.mark.parametrize("matrices, options, error, message", REFUSED)
def test_what_is_malformed_or_does_not_fit_is_refused_with_numbers_and_advice(
    matrices: list[MatrixSpec], options: Options, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        plan_onchip(matrices, H200, 132, options)


def test_devices_that_are_not_known_are_refused() -> None:
    with pytest.raises(HandleError, match="device 'H300' is not known; expected one of T4, A100"):
        known_device("H300")


def test_two_groups_hold_all_that_one_group_holds() -> None:
    """In the last case, B and its transpose would have too many rows per block."""
    two = [square("A", 40), MatrixSpec("B", 200, 150)]
    for matrices, gpu, n in ((tree_lstm(256), H200, 2), (tree_lstm(512), H200, 1), (two, PAIR, 1)):
        assert plan_groups(matrices, gpu, gpu.sms, Options()).groups == n
        assert plan_groups(matrices, gpu, gpu.sms - 1, Options()).groups == 1


# Smaller plans


@pytest.mark.parametrize("options", [Options(), Options(groups=4), IN_TURNS])
@pytest.mark.parametrize("hidden", [256, 768])
def test_every_step_down_takes_fewer_registers(options: Options, hidden: int) -> None:
    plan = plan_onchip(tree_lstm(hidden), H200, 132 // (options.groups or 1), options)
    plans = [plan, *step_down(plan)]
    assert all(before.chip.registers > after.chip.registers for before, after in pairwise(plans))
    assert plans[-1].chip.registers == 0
    assert len({p.chip for p in plans}) == len(plans)
    for each in plans:
        check_room(each)
    assert nothing_left(plans[-1]).endswith("keep a large matrix in memory: vpps.ChipOptions(tiers={'its name': 'L2'})")


def test_rows_per_warp_that_are_asked_for_stay() -> None:
    plan = plan_onchip([square("A", 1024)], H200, 132, Options(ownership="round-robin", rpw=3))
    assert [p.chip.registers for p in (plan, *step_down(plan))] == [96]
    assert nothing_left(plan) == "the kernel spills with 96 registers of weights; leave rpw=3 to the planner"


# Report


def test_explain_shows_every_role() -> None:
    text = explain(plan_onchip(tree_lstm(256), H200, 132), moments=2)
    row = next(line for line in text.splitlines() if line.startswith("U ") and "W^T" not in line)
    assert re.sub(r" +", " ", row) == "U W 1280x512 shared 1 1 x 132 window 0 - 8/8 21 KiB 5120 KiB [1]"
    assert f"[2] {ROW_SLICED}" in text
    assert "weights take 0 of 192 per thread" in text
    assert re.search(
        r"of 216 KiB per block: vectors \d+ KiB, partial sums \d+ KiB, results 5 KiB, windows 53 KiB", text
    )
    assert "6666 KiB in memory" in text
    assert max(map(len, text.splitlines())) <= 110
    turns = explain(plan_onchip(tree_lstm(256), H200, 132, IN_TURNS))
    assert re.search(r"U +W +1280x512 +registers +1 +1 x \d+ +\d x \(\d, 16\)", turns)
    assert " bf16 " in explain(plan_onchip(reduced(tree_lstm(256)), H200, 132))


def test_explain_says_what_comes_from_memory() -> None:
    text = explain(plan_onchip(tree_lstm(16384), H200, 132))
    assert "MiB of weights, L2 holds 60 MiB: the rest comes from memory" in text
    long = [dataclasses.replace(m, name=f"encoder/bottom/{m.name}_of_the_sentence") for m in tree_lstm(4096)]
    assert max(map(len, explain(plan_onchip(long, H200, 132), moments=2).splitlines())) <= 110


def test_capacity_is_the_most_that_stays() -> None:
    def windows(units: int, device: str) -> list[int]:
        """Number of matrices per window."""
        gpu = known_device(device)
        found = [m.window for m in plan_onchip(tree_lstm(units, units)[:2], gpu, gpu.sms).chip.dense]
        return [found.count(window) for window in set(found)]

    for device in ("H200", "T4"):
        most = capacity(tree_lstm(256)[:2], known_device(device), 256)
        assert windows(most, device) == [2, 2]
        assert max(windows(most + 16, device)) > 2
