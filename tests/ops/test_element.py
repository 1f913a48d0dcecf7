"""Element types, and what of a plan follows from them."""

from __future__ import annotations

import pytest

from vpps.ops.element import BFLOAT16, FLOAT32, WORD_BYTES, ElementType
from vpps.placement.onchip import ChipOptions, MatrixSpec, known_device, plan_onchip

pytestmark = pytest.mark.host


def test_words_are_rounded_up() -> None:
    assert (FLOAT32.bytes, FLOAT32.dtype.itemsize) == (WORD_BYTES, WORD_BYTES)
    assert [FLOAT32.words(n) for n in range(4)] == [0, 1, 2, 3]
    assert [BFLOAT16.words(n) for n in range(4)] == [0, 1, 1, 2]


def test_a_narrower_type_takes_fewer_registers() -> None:
    def planned(element: ElementType) -> tuple[int, int]:
        matrix = MatrixSpec("U", 1024, 1024, element=element)
        onchip = plan_onchip((matrix,), known_device("H200"), 132, ChipOptions())
        assert {slot.element for slot in onchip.chip.slots} == {element}
        return sum(s.size for s in onchip.chip.slots), sum(s.rows * s.columns for s in onchip.chip.slots)

    registers, weights = planned(FLOAT32)
    assert registers == weights
    registers, weights = planned(BFLOAT16)
    assert weights / 2 <= registers < 0.6 * weights
