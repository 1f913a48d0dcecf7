"""Lifetimes of a cell's slabs, and their layout side by side in groups."""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum, auto
from typing import TYPE_CHECKING, NamedTuple

from vpps.placement.distribution import ALIGN

if TYPE_CHECKING:
    from vpps.compiler.lower import LoweredCell


class Life(IntEnum):
    """Lifetime of a slab. A KEPT, ACROSS or LATE slab is one array with all rows of the block."""

    KEPT = 0  # until after the launch; in training: values of vertices, and other operands of weight gradients
    ACROSS = auto()  # training: from the block's first forward step to its last backward step
    LATE = auto()  # training: from the first backward step to the end; gradients that are read at the end
    SCRATCH = auto()  # one step; all steps use the same memory, as large as the largest step needs
    FORWARD = auto()  # training: one forward step, in memory shared by all steps; backward does not read it
    PASSED_ON = auto()  # inference: rows of a step, until the last stage that reads one of them
    HANDED_BACK = auto()  # training: gradients of arguments, rows of a step, until one stage after their last reader


# Floats between adjacent slabs. A tail reads all of the slabs in one loop. At distances of whole pages, their
# rows would share one set of the first-level cache, which holds fewer (measured: 3 times slower with 15 slabs).
STAGGER = 5 * ALIGN

WHOLE = (Life.KEPT, Life.ACROSS, Life.LATE)
REUSED = (Life.SCRATCH, Life.FORWARD)  # all steps use the same memory


class SlabGroup(NamedTuple):
    """Slabs with the same domain and lifetime, side by side: a row of the group has `width` floats."""

    life: Life
    domain: int
    width: int
    slabs: list[int]


class SlabGroups:
    """The slabs of a cell, grouped by lifetime.

    Args:
        read_whole: in inference, slabs that another part of the cell reads in one step.
        read_by_steps: in training, slabs of argument gradients that only backward steps read, through index lists.

    Attributes:
        of_life: numbers of the groups with each lifetime.
        places: for each slab its group, the floats per row of the slabs before it in the group, and the padding floats
            before it in the group.
    """

    def __init__(
        self,
        lowered: LoweredCell,
        training: bool,
        read_whole: Collection[int] = (),
        read_by_steps: Collection[int] = (),
    ) -> None:
        slabs = lowered.slabs if training else lowered.slabs[: lowered.n_forward_slabs]
        outputs = {v.slab for v in lowered.outputs}
        lives = [
            Life.KEPT if i in read_whole else Life.PASSED_ON if i in outputs else Life.SCRATCH
            for i in range(lowered.n_forward_slabs)
        ]
        if training:
            lives = _lives_in_training(lowered, read_by_steps)
        members: dict[object, list[int]] = {}
        for i, (life, slab) in enumerate(zip(lives, slabs, strict=True)):
            # Each passed-on slab has its own group, because it dies after its own last reader.
            members.setdefault((life, slab.domain, life is Life.PASSED_ON and i), []).append(i)
        self.groups: list[SlabGroup] = []
        self.of_life: dict[Life, list[int]] = {life: [] for life in Life}
        places: dict[int, tuple[int, int, int]] = {}
        for found in members.values():
            # Slabs whose widths are whole cache lines come first, so that each begins at a cache line.
            found.sort(key=lambda i: slabs[i].width % ALIGN != 0)
            width = 0
            for k, i in enumerate(found):
                places[i] = len(self.groups), width, k * STAGGER
                width += slabs[i].width
            self.of_life[lives[found[0]]].append(len(self.groups))
            self.groups.append(SlabGroup(lives[found[0]], slabs[found[0]].domain, width, found))
        self.places = [places[i] for i in range(len(slabs))]


def _lives_in_training(lowered: LoweredCell, read_by_steps: Collection[int]) -> list[Life]:
    forward = {v.slab for i in lowered.forward for _, v in i.views()}
    handed_back = {v.slab for _, v in lowered.arguments}.intersection(read_by_steps)
    late = {v.slab for g in lowered.parameter_gradients for _, v in g.instr.views()}
    late |= {g.view.slab for g in lowered.table_gradients} | {v.slab for _, v in lowered.arguments} - handed_back
    if lowered.input_gradient is not None:
        late.add(lowered.input_gradient.slab)
    outputs = {v.slab for v in lowered.outputs}
    backward = {v.slab for i in lowered.backward for _, v in i.views()}
    lives = []
    for i in range(len(lowered.slabs)):
        if i in forward:
            across = Life.ACROSS if i in backward else Life.FORWARD
            lives.append(Life.KEPT if i in outputs or i in late else across)
        else:
            lives.append(Life.LATE if i in late else Life.HANDED_BACK if i in handed_back else Life.SCRATCH)
    return lives
