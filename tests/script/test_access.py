"""Slices partition the elements: each has exactly one owner. Also tests the accesses of instructions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vpps.script.access import Access, Content, Reach, rows_of, touches, units_of_rows
from vpps.script.disassemble import Decoded, DecodedOperand, decode
from vpps.script.encode import encode
from vpps.script.instructions import NO_FLAGS, TABLE, Flag, Kind
from vpps.script.slices import TURN_BITS, row_and_column, tile_elements, unit_owners

pytestmark = pytest.mark.host

sizes = st.integers(1, 300)
vps = st.integers(1, 40)
panels = st.sampled_from((1, 8, 16, 32))


def test_units_are_owned_in_blocks_of_each_part() -> None:
    assert unit_owners(20, 2, 4, 2).tolist() == 2 * [*4 * [0], *6 * [1]]
    assert unit_owners(3, 1, 1, 5).tolist() == [1, 3, 4]


def test_rows_in_turns_go_round_from_who_begins() -> None:
    assert unit_owners(7, 2 | 1 << TURN_BITS, 1, 3, turns=True).tolist() == [1, 1, 2, 2, 0, 0, 1]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(part=sizes, parts=st.integers(1, 4), panel=panels, n=vps, bits=st.sampled_from((0, Flag.TURNS.value)))
def test_every_unit_has_one_owner(part: int, parts: int, panel: int, n: int, bits: int) -> None:
    owned = [units_of_rows(part * parts, parts, bits, panel, vp, n) for vp in range(n)]
    assert np.array_equal(np.sort(np.concatenate(owned)), np.arange(part * parts))
    assert all((np.diff(units) > 0).all() for units in owned)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(rows=sizes, columns=sizes, panel=panels, n=vps)
def test_every_element_of_a_matrix_lies_in_the_tiles_of_one(rows: int, columns: int, panel: int, n: int) -> None:
    owned = np.concatenate([tile_elements(rows, columns, panel, vp, n) for vp in range(n)])
    padded = -(-rows // panel) * panel
    assert np.array_equal(owned, np.arange(padded * columns))
    row, column = row_and_column(owned, columns, panel)
    assert np.array_equal(np.unique(row * columns + column), np.arange(padded * columns))


def decoded(name: str, flags: Flag = NO_FLAGS, **fields: object) -> Decoded:
    """Return an instruction on 6 rows of 8 units; other fields are 1 unless given."""
    table = {i.name: i for i in TABLE}[name]
    usual = {Kind.OPERAND: (16, 8), Kind.SEGMENTS: [((16, 8), 8)], Kind.VIEWS: []}
    values = {f.name: usual.get(f.kind, 1) for f in table.fields}
    return decode(np.array(encode(name, 6, 8, 1, flags, **{**values, **fields}), np.uint32), 0)


ALL_ROWS = [range(6), range(6), range(6)]
IN_THREE = [range(2), range(2, 4), range(4, 6)]


@pytest.mark.parametrize("flags, rows", [(Flag.ROWS, IN_THREE), (Flag.ALONE, ALL_ROWS), (NO_FLAGS, ALL_ROWS)])
def test_rows_are_divided_where_a_flag_says_so(flags: Flag, rows: list[range]) -> None:
    d = decoded("tanh", flags)
    assert [rows_of(d, vp, 3) for vp in range(3)] == rows


@pytest.mark.parametrize("name", [i.name for i in TABLE])
def test_all_operands_are_touched_what_is_read_first(name: str) -> None:
    d = decoded(name)
    written = [t.access in (Access.WRITE, Access.CHANGE) for t in touches(d)]
    assert written == sorted(written)
    operands = {f.name for f in d.instruction.fields if f.kind in (Kind.OPERAND, Kind.SEGMENTS)}
    assert operands == {t.name for t in touches(d) if t.content is Content.ROWS and t.reach is not Reach.LISTED}


def test_what_is_added_to_is_read_first() -> None:
    added, stored = (touches(decoded("column_sum", flags))[-1] for flags in (Flag.ACCUMULATE, NO_FLAGS))
    assert (added.access, stored.access) == (Access.CHANGE, Access.WRITE)
    assert added.at == stored.at == DecodedOperand(1, 0)


def test_a_product_that_leaves_its_result_on_the_chip_writes_nothing() -> None:
    writes = Access.WRITE, Access.CHANGE, Access.ADD
    assert any(t.access in writes for t in touches(decoded("held_matvec")))
    assert not any(t.access in writes for t in touches(decoded("held_matvec", Flag.CHAINED)))


def test_steps_change_weights_and_moments() -> None:
    changed = [t.name for t in touches(decoded("update_matrix.adam")) if t.content is Content.STATE]
    assert changed == ["weights", "moment0", "moment1", "average"]
    assert {t.reach for t in touches(decoded("update_matrix.adam"))} == {Reach.TILES, Reach.TRANSPOSED}
