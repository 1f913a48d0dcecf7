"""Records of cells and parameters: ints in the order of their fields, read so in C++."""

from __future__ import annotations

import pytest

from vpps.compiler.records import (
    InstructionRecord,
    RelocationRecord,
    SlabGroupRecord,
    SlabGroupsRecord,
    SlabPlaceRecord,
    TemplateRecord,
    flat,
)
from vpps.compiler.slabs import Life
from vpps.kernel import shared_types

pytestmark = pytest.mark.host


def test_lists_follow_their_lengths() -> None:
    words = TemplateRecord([10, 11], [RelocationRecord(1, -1, 0, 5, 6)])
    assert flat(InstructionRecord(3, words)) == [3, 2, 10, 11, 1, 1, -1, 0, 5, 6]
    assert flat([InstructionRecord(3, TemplateRecord([], []))]) == [1, 3, 0, 0]


def test_codes_are_their_numbers() -> None:
    groups = SlabGroupsRecord([SlabGroupRecord(Life.LATE, 1, 8, 0)], [SlabPlaceRecord(0, 4, 2)])
    assert flat(groups) == [1, Life.LATE.value, 1, 8, 0, 1, 0, 4, 2]


def test_members_are_read_in_that_order() -> None:
    """C++ initialises members in the order of their declarations."""
    assert shared_types.record(SlabGroupRecord) == (
        "struct SlabGroup {\n    Life life;\n    i32 domain;\n    i64 width;\n    i64 stagger;\n"
        "    explicit SlabGroup(Numbers& from) : life(taken<Life>(from)), domain(taken<i32>(from)), "
        "width(taken<i64>(from)), stagger(taken<i64>(from)) {}\n};\n"
    )
