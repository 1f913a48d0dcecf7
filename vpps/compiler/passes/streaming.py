"""Deals the eager part of a recurrence to the pauses between its levels (Cavs, section 4.3, streaming).

What is eager could all run before the first level, while the recurrence waits. But only the first levels need their
share of it then. The rest goes, in chunks that keep instructions long, to where virtual processors wait for each other:
a chunk for level l and those after it is executed between the signal and the wait of the barrier that ends level l - 2,
and so is complete, for everyone, behind the barrier that ends level l - 1.
"""

from __future__ import annotations

CHUNK_ROWS = 128  # at least; enough for products at full speed on every target
