"""Which weights live where on a GPU: shapes of slots, tiers, gradients, smaller plans, rows of every block."""

from __future__ import annotations

import dataclasses
import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vpps.errors import CapacityError, HandleError, SpillError
from vpps.kernel.chip import KERNEL_SHARED, THREADS
from vpps.placement.onchip import (
    DEVICES,
    Device,
    MatrixSpec,
    OnChip,
    explain,
    known_device,
    owned_rows,
    plan_onchip,
    step_down,
    valid_rpw,
)
from vpps.placement.onchip import (
    ChipOptions as Options,
)
from vpps.placement.onchip.holding import NARROW, NARROW_ROWS, ROW_SLICED
from vpps.script.slices import unit_owners
from vpps.text import KIB

pytestmark = pytest.mark.host

H200 = known_device("H200")
T4 = known_device("T4")


def tree_lstm(hidden: int, words: int = 256, classes: int = 5) -> list[MatrixSpec]:
    """Binary tree LSTM: U on two children, W on words, an output layer."""
    return [
        MatrixSpec("U", 5 * hidden, 2 * hidden, parts=5, role_t_parts=2),
        MatrixSpec("W", 3 * hidden, words, parts=3),
        MatrixSpec("Wo", classes, hidden),
    ]


def square(name: str, size: int, **changes: object) -> MatrixSpec:
    return dataclasses.replace(MatrixSpec(name, size, size), **changes)  # type: ignore[arg-type]


def tiers(plan: OnChip) -> dict[str, str]:
    return {held.name: held.tier for held in plan.held}


def shape(plan: OnChip, name: str) -> tuple[int, int, int]:
    found = plan.of(name).shape
    assert found is not None
    return found.rows, found.columns, found.warps


# Shapes


def test_tree_lstm_of_256_units_takes_52_registers_as_designed() -> None:
    plan = plan_onchip(tree_lstm(256)[:2], H200, 128)
    assert {name: shape(plan, name) for name in tiers(plan)} == {
        "U": (5, 4, 4),
        "U^T": (4, 5, 8),
        "W": (3, 2, 4),
        "W^T": (2, 3, 8),
    }
    assert [(held.rows_owned, held.columns) for held in plan.held] == [(10, 512), (4, 1280), (6, 256), (2, 768)]
    assert plan.chip.registers == 52
    assert [held.warps_busy for held in plan.held] == [8, 8, 8, 8]


def test_the_paper_allows_six_rows_per_warp_of_1024_columns() -> None:
    assert valid_rpw(1024, H200.registers) == range(1, 7)
    assert not valid_rpw(32 * 193, 192)


# Capacity


def capacity(device: Device) -> tuple[int, int]:
    """Weights that fit in all registers, and in shared memory beside 8 vectors of 256 columns."""
    shared = (device.shared - 4 * 8 * 256) // KIB
    return device.sms * THREADS * device.registers, device.sms * THREADS * shared


@pytest.mark.parametrize("device", DEVICES)
def test_a_plan_reaches_the_capacity(device: str) -> None:
    gpu = known_device(device)
    in_registers, in_shared = capacity(gpu)
    rows = gpu.sms * THREADS // 256  # of 256 columns, which take one register of each thread, or one KiB of a block
    a = MatrixSpec("A", 192 * rows, 256, role_t_parts=0, trained=False)
    b = MatrixSpec("B", in_shared // 256 // rows * rows, 256, role_t_parts=0, trained=False)
    plan = plan_onchip([a, b], gpu, gpu.sms, Options(tiers={"A": "registers", "B": "shared"}))
    assert tiers(plan) == {"A": "registers", "B": "shared"}
    assert plan.gradients == "none"
    assert plan.chip.registers == 192
    assert a.rows * a.columns == in_registers
    assert b.rows * b.columns > 0.99 * in_shared
    more = dataclasses.replace(b, rows=b.rows + rows)
    assert tiers(plan_onchip([a, more], gpu, gpu.sms, Options(tile=8)))["B"] == "L2"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("hidden", [64, 256, 512, 768, 1024])
def test_a_plan_never_takes_more_than_there_is(device: str, hidden: int) -> None:
    gpu = known_device(device)
    plan = plan_onchip(tree_lstm(hidden), gpu, gpu.sms)
    assert plan.chip.registers <= gpu.registers
    assert plan.chip.shared_bytes <= gpu.shared_per_block
    widths = [held.shape.width for held in plan.held if held.shape]
    assert plan.chip.stage == max(widths)
    assert all(slot.rows * plan.chip.tile <= 64 for slot in plan.chip.slots)  # sums that a thread carries


# Tiers


A1792, B1792 = (square(name, 1792, role_t_parts=0) for name in "AB")
TIERS: dict[str, tuple[list[MatrixSpec], Options, dict[str, str]]] = {
    "all registers": ([square("A", 1024)], Options(), {"A": "registers", "A^T": "registers"}),
    "then shared memory": ([square("A", 1792)], Options(), {"A": "registers", "A^T": "shared"}),
    "then L2": ([square("A", 4096)], Options(), {"A": "L2", "A^T": "L2"}),
    "the first one": ([A1792, B1792], Options(), {"A": "registers"}),
    "the one used more often": ([A1792, dataclasses.replace(B1792, uses=2.0)], Options(), {"B": "registers"}),
    "W before transposes": ([square("A", 1536), square("B", 1536)], Options(), {"A": "registers", "B": "registers"}),
    "no transpose where none is needed": ([square("A", 256, role_t_parts=0)], Options(), {"A": "registers"}),
    "a copy that fits nowhere": (
        [MatrixSpec("A", 4224, 1536), square("C", 1152, role_t_parts=0)], Options(transposed="copy"), {"A^T": "L2"},
    ),
    "forced atomics": (
        tree_lstm(256), Options(transposed="atomic"), {"U^T": "atomic", "W^T": "atomic", "Wo^T": "L2"},
    ),
    "forced ones": (
        tree_lstm(256), Options(tiers={"W^T": "shared", "U": "L2", "W": "registers"}),
        {"U": "L2", "W": "registers", "W^T": "shared"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TIERS)
def test_tiers(name: str) -> None:
    matrices, options, expected = TIERS[name]
    found = tiers(plan_onchip(matrices, H200, 132, options))
    assert expected.items() <= found.items()
    assert "A^T" not in found or matrices[0].role_t_parts


def test_shapes_with_fewer_registers_are_taken_where_more_fits_then() -> None:
    """35 rows of 512 columns, 20 of 256 ...: the fastest shapes of each take 208 registers together, these fewer."""
    plan = plan_onchip(tree_lstm(256), T4, 40)
    assert {name for name, tier in tiers(plan).items() if tier != "registers"} == {"Wo", "Wo^T"}
    assert plan.weights_in("registers") <= 192


def test_a_narrow_output_layer_divides_vertices() -> None:
    plan = plan_onchip(tree_lstm(256), H200, 132)
    wo = plan.of("Wo")
    assert (wo.tier, wo.reason, wo.shape, wo.gradient) == ("L2", ROW_SLICED, None, "tiles")
    assert (plan.of("Wo^T").tier, plan.of("Wo^T").reason) == ("L2", NARROW_ROWS)  # 256 rows of 5 columns
    wide = [MatrixSpec("Wo", NARROW, 256)]
    assert plan_onchip(wide, H200, 132).of("Wo^T").tier == "registers"  # its rows are dealt like any other's
    assert plan_onchip([MatrixSpec("V", 66, 64)], H200, 132).of("V").tier == "registers"
    assert plan_onchip([MatrixSpec("V", 65, 64)], H200, 132).of("V").tier == "L2"


def test_a_transpose_without_room_becomes_atomic_where_that_moves_less() -> None:
    """Each block adds `columns` partial sums per vertex instead of reading its share of W^T once per 8 vertices: that
    pays where a block owns many rows."""
    many, few = MatrixSpec("A", 4224, 1536), MatrixSpec("B", 1584, 4096)
    plan = plan_onchip([many, square("C", 1152, role_t_parts=0)], H200, 132)
    assert tiers(plan)["A^T"] == "atomic"
    assert plan.of("A^T").copies == 0
    assert "atomics 1584 KiB" in plan.of("A^T").reason
    assert tiers(plan_onchip([few, square("C", 1152, role_t_parts=0)], H200, 132))["B^T"] == "L2"


# Staging


def test_the_staging_buffer_is_doubled_where_the_device_copies_asynchronously() -> None:
    plan = plan_onchip(tree_lstm(256), H200, 132)
    assert (plan.chip.tile, plan.chip.tiles, plan.chip.stage, plan.chip.buffers) == (8, 2, 1280, 2)
    sums = 8 * 5 * 16  # of 5 rows and 16 vertices, from 8 warps
    results = 5 * THREADS
    assert plan.chip.shared_bytes == KERNEL_SHARED + 2 * 4 * 16 * 1280 + 4 * (sums + results)
    small = plan_onchip(tree_lstm(256), T4, 40).chip
    assert (small.tiles, small.buffers) == (1, 1)


def test_weights_come_before_the_second_staging_buffer() -> None:
    plan = plan_onchip([square("A", 1920)], H200, 132)
    assert tiers(plan)["A^T"] == "shared"
    assert (plan.chip.tiles, plan.chip.buffers) == (1, 1)


def test_rows_too_wide_for_the_staging_buffer_lessen_the_tile() -> None:
    wide = MatrixSpec("A", 132, 8192, role_t_parts=0)
    assert plan_onchip([wide], H200, 132).chip.tile == 4
    wider = dataclasses.replace(wide, columns=65536)
    assert tiers(plan_onchip([wider], H200, 132)) == {"A": "L2"}


# Gradients


IN_TURNS = Options(ownership="round-robin")


@pytest.mark.parametrize("hidden", [256, 512, 1792])
def test_gradients_take_the_place_of_the_weights(hidden: int) -> None:
    """In the published scheme they cost nothing, however large the model is."""
    plan = plan_onchip(tree_lstm(hidden), H200, 132, IN_TURNS)
    assert plan.gradients == "overlay"
    w = {s for name in ("U", "W") for s in plan.of(name).slots}
    assert [slot.keeps_gradient for slot in plan.chip.slots] == [s in w for s in range(len(plan.chip.slots))]
    assert plan.chip.registers == plan.weights_in("registers") <= 192


def test_frozen_matrices_have_no_gradient() -> None:
    plan = plan_onchip([square("A", 512, trained=False), square("B", 512)], H200, 132, IN_TURNS)
    assert (plan.of("A").gradient, plan.of("B").gradient) == ("", "overlay")
    assert not any(plan.chip.slots[s].keeps_gradient for s in plan.of("A").slots)


def test_gradients_of_matrices_off_the_chip_are_made_in_tiles() -> None:
    plan = plan_onchip([square("A", 8192), square("B", 512)], H200, 132, IN_TURNS)
    assert [plan.of(name).gradient for name in "AB"] == ["tiles", "overlay"]
    assert plan.gradients == "overlay"


def test_gradients_are_made_in_tiles_but_for_the_published_scheme() -> None:
    plan = plan_onchip(tree_lstm(256), H200, 66, Options(groups=2))
    assert plan.of("U").copies == 2
    for other in (plan, plan_onchip(tree_lstm(256), H200, 132)):
        assert {held.gradient for held in other.held if not held.transposed} == {"tiles"} == {other.gradients}
        assert not other.chip.keeps_gradients


# Windows


def test_groups_multiply_from_windows_with_a_transpose_at_home() -> None:
    plan = plan_onchip(tree_lstm(256), H200, 33, Options(groups=4))
    assert {m.what.split()[0]: (m.window, m.home >= 0) for m in plan.chip.dense} == {
        "U": (0, False), "U^T": (0, True), "W": (1, False), "W^T": (2, False),
    }  # fmt: skip
    assert plan.of("U^T").tier == "registers"
    assert plan.chip.registers == 80
    assert plan.chip.shared_bytes <= H200.shared_per_block
    assert plan.chip.results >= max(t.all_vectors * plan.of("U").rows_owned for t in plan.chip.product_tiles[-1:])


def test_windows_that_do_not_fit_leave_slots() -> None:
    """All of them, or of a block that owns more rows than there is room for results."""
    for matrices, groups in ((tree_lstm(1024), 4), ([square("A", 64), MatrixSpec("B", 90_000, 64)], 2)):
        plan = plan_onchip(matrices, H200, 132 // groups, Options(groups=groups))
        assert not plan.chip.dense
        with pytest.raises(CapacityError, match=r"products='windows': .* leave products to 'auto'"):
            plan_onchip(matrices, H200, 132 // groups, Options(groups=groups, products="windows"))


def test_a_kernel_that_spills_gives_up_windows_first() -> None:
    plan = plan_onchip(tree_lstm(256), H200, 33, Options(groups=4))
    smaller = next(step_down(plan))
    assert smaller.chip == plan_onchip(tree_lstm(256), H200, 33, Options(groups=4, products="slots")).chip


# Options


TRANSPOSED = Options(transposed="atomic")
ROUND_ROBIN = Options(ownership="round-robin", rpw=7)
REFUSED: list[tuple[list[MatrixSpec], Options, type[Exception], str]] = [
    (tree_lstm(256), Options(tile=3), HandleError, "tile=3: expected one of None, 8, 4, 2, 1"),
    (tree_lstm(256), Options(products="tiles"), HandleError, "products='tiles': expected one of"),
    (tree_lstm(256), Options(groups=0), HandleError, "groups=0"),
    (tree_lstm(256), Options(products="both"), HandleError, "products='both': expected one of 'auto', 'slots'"),  # type: ignore[arg-type]
    (tree_lstm(256), Options(products="windows", tile=4), HandleError, "products='windows' with tile=4: only slots"),
    (tree_lstm(256), Options(products="windows", tiers={"U": "registers"}), HandleError, "with tiers=.*only slots"),
    (tree_lstm(256), Options(rpw=2), HandleError, "rpw=2: expected a positive int, and ownership='round-robin'"),
    (tree_lstm(256), Options(ownership="round-robin", rpw=16, tile=8), HandleError,
     "128 sums in each thread, more than 64; try rpw=8"),
    (tree_lstm(256), Options(tiers={"X": "shared"}), HandleError,
     r"no such matrix; there are U, U\^T, W, W\^T, Wo, Wo\^T"),
    (tree_lstm(256), Options(tiers={"U": "atomic"}), HandleError,
     "expected 'registers', 'shared', 'L2' or, of a transpose, 'atomic'"),
    (tree_lstm(256), Options(groups=2), HandleError,
     "2 groups of 132 blocks do not run side by side .* at most 66 per group"),
    ([MatrixSpec("A", 10, 8, parts=3)], Options(), HandleError, "'A' of shape 10x8: 3 parts must divide its rows"),
    ([square("A", 64), square("A", 128)], Options(), HandleError, "repeated: A"),
    (tree_lstm(256), Options(tiers={"Wo": "shared"}), CapacityError,
     r"tiers=\{'Wo': 'shared'\}: rows are fewer than VPs"),
    ([square("A", 2560)], Options(tiers={"A": "registers"}), CapacityError,
     r"tiers=\{'A': 'registers'\} does not fit: needs \d+ registers, 192 were"),
    ([MatrixSpec("A", 132, 8192, role_t_parts=0)], Options(tile=8, tiers={"A": "registers"}), CapacityError,
     "staging 8 of its rows takes 256 KiB of 216 KiB"),
    ([square("A", 4096)], TRANSPOSED, CapacityError,
     "transposed='atomic'.*'A' need its rows on the chip, and it is in L2"),
    ([square("A", 1024)], ROUND_ROBIN, CapacityError,
     "rpw=7: rows of up to 1024 columns take 32 registers each .*valid: 1 to 6"),
    ([MatrixSpec("A", 1536, 512)], Options(ownership="round-robin", rpw=6), CapacityError,
     "valid: 1 to 4, or transposed='atomic' with 1 to 12"),
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


def test_rows_are_more_without_transposes() -> None:
    rows = Options(ownership="round-robin", rpw=6, transposed="atomic")
    assert shape(plan_onchip([square("A", 1024)], H200, 132, rows), "A") == (6, 32, 1)


# Round-robin ownership


def test_round_robin_gives_the_makespan_that_alignment_avoids() -> None:
    """Tree-LSTM of 256 units: whole rows of U leave 52 of 132 blocks idle while the others have 16 rows."""
    options = Options(ownership="round-robin", rpw=2)
    u = plan_onchip(tree_lstm(256), H200, 132, options).of("U")
    owned = [int((owned_rows(u, vp, 132) >= 0).sum()) for vp in range(132)]
    assert (max(owned), owned.count(0)) == (16, 52)
    assert u.rows_owned == 16


def test_round_robin_deals_a_matrix_from_where_the_last_one_ended() -> None:
    """As in figure 4 of the paper: two rows per warp, 4 blocks; here of 8 warps."""
    matrices = [MatrixSpec("A", 96, 64, role_t_parts=0), MatrixSpec("B", 64, 64, role_t_parts=0)]
    plan = plan_onchip(matrices, dataclasses.replace(H200, sms=4), 4, Options(ownership="round-robin", rpw=2))
    a, b = plan.of("A"), plan.of("B")
    assert (a.first_vp, b.first_vp) == (0, 2)
    assert owned_rows(a, 1, 4)[:, :, 0].tolist() == [list(range(16, 32, 2)), list(range(80, 96, 2))]
    assert owned_rows(b, 2, 4)[0, 0].tolist() == [0, 1]
    assert owned_rows(b, 0, 4)[0, 0].tolist() == [32, 33]


def test_the_planner_finds_rows_per_warp_that_fit() -> None:
    plan = plan_onchip(tree_lstm(256)[:2], H200, 132, Options(ownership="round-robin"))
    assert set(tiers(plan).values()) == {"registers"}
    assert len({slot.rows for slot in plan.chip.slots}) == 1
    assert plan.chip.slots[0].rows in valid_rpw(1280, 192)
    assert {slot.warps for slot in plan.chip.slots} == {1}


def test_many_rows_per_warp_lessen_the_tile() -> None:
    plan = plan_onchip([square("A", 256)], H200, 132, Options(ownership="round-robin", rpw=20))
    assert plan.chip.tile == 2


# Rows of every block


sizes = st.integers(1, 400)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(units=sizes, parts=st.integers(1, 5), columns=sizes, t_parts=st.integers(1, 3), n_vps=st.integers(1, 132))
def test_aligned_rows_are_those_of_unit_owners(units: int, parts: int, columns: int, t_parts: int, n_vps: int) -> None:
    plan = plan_onchip([MatrixSpec("A", units * parts, columns * t_parts, parts, t_parts)], H200, n_vps)
    for held in plan.held:
        if held.shape is None:
            continue
        owners = unit_owners(held.rows, held.parts, 1, n_vps)
        for vp in range(n_vps):
            table = owned_rows(held, vp, n_vps)
            assert table.shape == (len(held.slots), 8 // held.shape.warps, held.shape.rows)
            rows = table[table >= 0]
            assert np.array_equal(rows, np.flatnonzero(owners == vp))
            assert len(rows) <= held.rows_owned
        assert max((owned_rows(held, vp, n_vps) >= 0).sum() for vp in range(n_vps)) == held.rows_owned


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    matrices=st.lists(st.tuples(st.integers(1, 700), st.integers(1, 300)), min_size=1, max_size=3),
    rpw=st.integers(1, 8),
    n_vps=st.integers(1, 40),
)
def test_round_robin_gives_every_row_to_one_block(matrices: list[tuple[int, int]], rpw: int, n_vps: int) -> None:
    specs = [MatrixSpec(f"M{k}", r, c) for k, (r, c) in enumerate(matrices)]
    plan = plan_onchip(specs, H200, n_vps, Options(ownership="round-robin", rpw=rpw))
    for held in plan.held:
        if held.shape is None:
            continue
        tables = [owned_rows(held, vp, n_vps) for vp in range(n_vps)]
        rows = np.concatenate([table[table >= 0] for table in tables])
        assert np.array_equal(np.sort(rows), np.arange(held.rows))
        assert max((table >= 0).sum() for table in tables) == held.rows_owned
        for warp in np.concatenate([table.reshape(-1, rpw) for table in tables]):
            held_rows = warp[warp >= 0]
            assert np.array_equal(held_rows, np.arange(len(held_rows)) + (held_rows[0] if len(held_rows) else 0))


# Smaller plans


def test_steps_give_up_vertices_then_slots_then_rows_then_the_last_slots() -> None:
    plans = list(step_down(plan_onchip(tree_lstm(512), H200, 132)))
    tile = [plan.chip.tile for plan in plans]
    registers = [plan.chip.registers for plan in plans]
    rows = [max(slot.rows for slot in plan.chip.slots) for plan in plans]
    assert tile[:2] == [4, 2]
    assert set(tile[2:]) == {2}
    assert registers[:2] == [184, 184]
    least = next(i for i, (a, b) in enumerate(pairwise(registers)) if a == b and i)  # one role is left
    without = registers.index(0)
    assert all(a > b for a, b in pairwise(registers[1 : least + 1]))
    assert len(set(rows[: least + 1])) == 1
    for first, end in ((least, without), (without, len(plans))):
        assert len(set(registers[first:end])) == 1
        assert rows[first:end] == sorted(set(rows[first:end]), reverse=True)
    assert rows[without] > rows[without - 1]  # it is not for registers that they were low
    assert (rows[-1], registers[-1]) == (1, 0)


@pytest.mark.parametrize("device", ["H200", "T4"])
@pytest.mark.parametrize("ownership", ["aligned", "round-robin"])
@pytest.mark.parametrize("hidden", [128, 256, 512, 640])
def test_every_step_is_smaller_and_another_kernel(device: str, ownership: str, hidden: int) -> None:
    gpu = known_device(device)
    plan = plan_onchip(tree_lstm(hidden), gpu, gpu.sms, Options(ownership=ownership))  # type: ignore[arg-type]
    plans = [plan, *step_down(plan)]
    chips = [p.chip for p in plans]
    sizes = [(c.tile, c.registers > 0, max((s.rows for s in c.slots), default=0), c.registers) for c in chips]
    for before, after in pairwise(sizes):
        if before[1] == after[1]:  # without any in registers slots are as high as they were once more
            assert all(b >= a for b, a in zip(before, after, strict=True))
        assert before > after
    assert len({p.to_key() for p in plans}) == len(plans)
    for held in (held for p in plans for held in p.held if held.shape):
        tables = [owned_rows(held, vp, gpu.sms) for vp in range(gpu.sms)]
        assert np.array_equal(np.sort(np.concatenate([t[t >= 0] for t in tables])), np.arange(held.rows))
        assert max((table >= 0).sum() for table in tables) == held.rows_owned


def test_the_least_useful_role_leaves_the_registers_first() -> None:
    a, b = square("A", 512, uses=3.0), square("B", 512)
    order = []
    last = set(tiers(plan_onchip([a, b], H200, 132)))
    for plan in step_down(plan_onchip([a, b], H200, 132)):
        now = {name for name, tier in tiers(plan).items() if tier == "registers"}
        order += sorted(last - now)
        last = now
    assert order == ["B^T", "B", "A^T", "A"]


def test_what_was_moved_out_says_so() -> None:
    evicted = [p for p in step_down(plan_onchip(tree_lstm(256), H200, 132)) if p.of("W^T").tier == "shared"]
    assert evicted[0].of("W^T").reason == "kept out of registers: the kernel spilled"


def test_forced_choices_do_not_step_down() -> None:
    options = Options(tile=8, ownership="round-robin", tiers={"U": "registers"})
    for plan in step_down(plan_onchip(tree_lstm(256), H200, 132, options)):
        assert (plan.chip.tile, plan.gradients, plan.of("U").tier) == (8, "overlay", "registers")


def test_a_plan_forced_in_everything_is_an_error_with_advice() -> None:
    forced = Options(ownership="round-robin", rpw=2, tile=4, tiers={"A": "registers", "A^T": "registers"})
    plan = plan_onchip([square("A", 256)], H200, 132, forced)
    with pytest.raises(SpillError, match=r"tile=4, rpw=2, tiers=.* leaves nothing to give up; leave one of them") as e:
        next(step_down(plan))
    assert "spills with 32 registers of each thread" in str(e.value)
    assert "tiers={'A': 'shared'}" in str(e.value)


# Key and report


def test_the_key_is_what_the_kernel_depends_on() -> None:
    plan = plan_onchip(tree_lstm(256), H200, 132)
    assert plan.to_key() == plan_onchip(tree_lstm(256), H200, 132).to_key()
    renamed = [dataclasses.replace(m, name=m.name + "2") for m in tree_lstm(256)]
    assert plan_onchip(renamed, H200, 132).to_key() == plan.to_key()
    for other in (Options(tile=4), IN_TURNS, Options(tiers={"U": "shared"})):
        assert plan_onchip(tree_lstm(256), H200, 132, other).to_key() != plan.to_key()


def test_explain_shows_every_role() -> None:
    text = explain(plan_onchip(tree_lstm(256), H200, 132), moments=2)
    row = next(line for line in text.splitlines() if line.startswith("U ") and "W^T" not in line)
    assert re.sub(r" +", " ", row) == "U W 1280x512 registers 1 1 x 132 1 x (5,4,4) 20 8/8 20 KiB 5120 KiB tiles [1]"
    assert f"[2] {ROW_SLICED}" in text
    assert "52 of 192 per thread; weights take 52" in text
    assert "167 of 216 KiB per block: two staging buffers of 80 KiB, 2 KiB of partial sums, 5 KiB of" in text
    assert "6666 KiB in memory" in text
    assert max(map(len, text.splitlines())) <= 110


def test_explain_says_what_comes_from_memory() -> None:
    text = explain(plan_onchip(tree_lstm(1024), H200, 132))
    assert "80 MiB of weights, L2 holds 60 MiB: the rest comes from memory" in text
    long = [dataclasses.replace(m, name=f"encoder/bottom/{m.name}_of_the_sentence") for m in tree_lstm(4096)]
    assert max(map(len, explain(plan_onchip(long, H200, 132), moments=2).splitlines())) <= 110
