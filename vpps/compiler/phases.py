"""Encodes the parts of a recurrent cell (compiler/passes/lazy_batching.py).

Each part has the vertices of the whole cell, with rows in the same order. So a part reads another part's value in the
same row, and takes the gradient back from the reader's row, without an index list.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from vpps.compiler.encoded_cell import EncodedCell
from vpps.compiler.instr import SameRow, SameRowGradient, View
from vpps.compiler.passes.lazy_batching import Batching, CellPart
from vpps.record.trace import TracedCell


class EncodedPart(NamedTuple):
    """A part's encoded cell, and the views that it reads from other parts in the same rows: (part number, view)."""

    cell: EncodedCell
    same_row: dict[SameRow | SameRowGradient, tuple[int, View]]


def encode_parts(
    parts: Sequence[CellPart],
    encode: Callable[[TracedCell, int, Mapping[int, int], bool, Collection[int]], EncodedCell],
    unread: Collection[int] = (),
    training: bool = True,
) -> list[EncodedPart]:
    """Encode the parts of a cell.

    Args:
        encode: function that encodes a cell. Its other arguments: position of the first argument that other parts
            compute; outputs whose gradient their only reader hands back, with the stride of the gradient's rows; True
            for training; outputs that nothing reads.
        unread: outputs of the whole cell that nothing reads.
    """
    made: dict[int, EncodedPart] = {}
    numbers = {part.batching: k for k, part in enumerate(parts)}
    handed: dict[tuple[Batching, int], tuple[int, SameRow, View]] = {}  # crossing value -> reader that hands it back
    with_gradient: set[tuple[Batching, int]] = set()  # crossing values for which some reader has a gradient
    for k in reversed(range(len(parts))):  # readers first
        part = parts[k]
        same_row: dict[SameRow | SameRowGradient, tuple[int, View]] = {}
        taken_back: dict[int, int] = {}
        for output in range(len(part.outputs)):
            if (part.batching, output) in handed:
                reader, key, view = handed[part.batching, output]
                taken_back[output] = made[reader].cell.lowered.slabs[view.slab].width
                made[reader].cell.handed_back.remove((key, view))
                same_row[SameRowGradient(output)] = reader, view
        dead = [
            output
            for output, k in enumerate(part.outputs)
            if (k < 0 or k in unread) and (part.batching, output) not in with_gradient
        ]
        cell = encode(part.cell, part.first_crossing, taken_back, training, dead)
        for position, crossing in enumerate(part.crossings, start=part.first_crossing):
            key = SameRow(position)
            found = [view for to, view in cell.lowered.arguments if to == key]
            if found:
                with_gradient.add((crossing.batching, crossing.output))
            if crossing.alone and len(found) == 1 and found[0].slab >= 0:
                handed[crossing.batching, crossing.output] = k, key, found[0]
        made[k] = EncodedPart(cell, same_row)
    for k, part in enumerate(parts):
        for position, crossing in enumerate(part.crossings, start=part.first_crossing):
            other = numbers[crossing.batching]
            view = made[other].cell.lowered.outputs[crossing.output]
            assert view.slab >= 0
            made[k].same_row[SameRow(position)] = other, view
            if part.batching is Batching.LAZY:  # it reads all rows in one step
                made[other].cell.read_whole.add(view.slab)
    return [made[k] for k in range(len(parts))]
