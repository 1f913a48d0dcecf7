"""Pieces of steps in inference: how many rows go through all instructions of a step before the next ones do.

What one instruction writes the next one then finds in the second-level cache, and the memory that steps use again is
not larger than that: scores of a vocabulary, above all. In training most of it is kept, and nothing is gained.
"""

from __future__ import annotations

from collections.abc import Sequence

from vpps.compiler.encoded_cell import EncodedCell

CACHED_FLOATS = 1 << 17
"""That the rows of a piece have: 512 KiB, half of what a core's second-level cache has today."""

FEWEST_ROWS = 64
"""Products of fewer rows would read their matrices more often than it pays."""


def piece_rows(parts: Sequence[EncodedCell]) -> int:
    """How many rows of a step of a cell, or of its parts, are to be executed together; 0: all of them."""
    if not all(part.has_pieces() for part in parts):
        return 0
    widest = max(sum(g.width for g in part.slab_groups(training=False).groups if not g.domain) for part in parts)
    return max(FEWEST_ROWS, CACHED_FLOATS // max(widest, 1))
