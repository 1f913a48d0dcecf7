"""Element types of tensors."""

from __future__ import annotations

import pytest

from vpps.ops.element import BFLOAT16, FLOAT32, WORD_BYTES

pytestmark = pytest.mark.host


def test_words_are_rounded_up() -> None:
    assert (FLOAT32.bytes, FLOAT32.dtype.itemsize) == (WORD_BYTES, WORD_BYTES)
    assert [FLOAT32.words(n) for n in range(4)] == [0, 1, 2, 3]
    assert [BFLOAT16.words(n) for n in range(4)] == [0, 1, 1, 2]
