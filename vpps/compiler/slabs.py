"""The slabs of a cell: how long each holds something, and which lie side by side."""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum, auto
from typing import TYPE_CHECKING, NamedTuple

from vpps.placement.distribution import ALIGN

if TYPE_CHECKING:
    from vpps.compiler.lower import LoweredCell


class Life(IntEnum):
    """How long a slab holds something. Where nothing else is said, it is one array for all rows of the block."""

    KEPT = 0  # to after the launch; in training values of vertices, and what else weight gradients read
    ACROSS = auto()  # training: from the block's first step to its backward, the last step of backward
    LATE = auto()  # training: from the first step of backward to the end; gradients that are read at the end
    SCRATCH = auto()  # one step; all steps use the same memory, which is that of the largest
    FORWARD = auto()  # training: likewise, of forward: what backward does not read
    PASSED_ON = auto()  # inference: rows of a step, until the last stage that reads one of them
    HANDED_BACK = auto()  # training: likewise, gradients of arguments, and one stage more


# Floats between slabs that lie side by side. A tail runs along all of them at once; were they whole pages apart, their
# rows would meet in one set of the first-level cache, which holds fewer (measured: 3 times slower with 15 slabs).
STAGGER = 5 * ALIGN

WHOLE = (Life.KEPT, Life.ACROSS, Life.LATE)
REUSED = (Life.SCRATCH, Life.FORWARD)  # in training: by all steps


class SlabGroup(NamedTuple):
    """Slabs of one domain that live equally long, side by side: together a row of `width` floats."""

    life: Life
    domain: int
    width: int
    slabs: list[int]


class SlabGroups:
    """The slabs of a cell by their lives.

    Args:
        read_whole: in inference, slabs that another part of the cell reads in one step.
        read_by_steps: in training, slabs whose gradients of arguments only steps of backward read, through index lists.

    Attributes:
        of_life: numbers of the groups of each life.
        places: of each slab its group, the floats per row of the slabs that precede it there, and the floats between it
            and the beginning of the group that belong to no slab.
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
            # What is passed on dies when its own last reader has run.
            members.setdefault((life, slab.domain, life is Life.PASSED_ON and i), []).append(i)
        self.groups: list[SlabGroup] = []
        self.of_life: dict[Life, list[int]] = {life: [] for life in Life}
        places: dict[int, tuple[int, int, int]] = {}
        for found in members.values():
            # Widths of whole cache lines first: so all of these begin at one.
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
