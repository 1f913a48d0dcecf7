"""Stacks: adjacent parameters in the pool that the kernel treats as one.

A stack of equally wide matrices has the first member's rows, then the second member's, and so on. A stack of vectors
has their elements. Members consist of whole panels of rows, so a member's weights, gradient, moments and average are a
range within the stack's. In the packed transpose, a member has some of the columns.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vpps.model.model import Parameter


class Stack(Parameter):
    """Several parameters as one, used by plans instead of the members. Models contain no stacks; a stack has no values.

    Attributes:
        members: at least two parameters of equal shape, all trainable or none.
    """

    __slots__ = ("members",)

    def __init__(self, members: Sequence[Parameter]) -> None:
        self.members = tuple(members)
        first = self.members[0]
        self._model = weakref.ref(first.model)
        self._name = "+".join(p.name for p in members)
        self._shape = (len(members) * first.shape[0], *first.shape[1:])
        self._trainable = first.trainable
        self.is_transposed = False  # a parameter that cells transpose is not stacked


@dataclass(frozen=True, slots=True)
class Stacks:
    """All stacks of a model.

    Attributes:
        of: member -> its stack.
        orders: ordered groups of matrices that cells allow to be stacked, even if something else prevents it.
    """

    of: dict[Parameter, Stack]
    orders: tuple[tuple[Parameter, ...], ...] = ()

    @classmethod
    def made_of(cls, members: Iterable[Sequence[Parameter]]) -> Stacks:
        """Make a stack from each group of members."""
        return cls({p: stack for stack in map(Stack, members) for p in stack.members})

    @property
    def all(self) -> list[Stack]:
        """Each stack once."""
        return list(dict.fromkeys(self.of.values()))

    def same_as(self, other: Stacks) -> bool:
        """True if both stack the same parameters in the same order, with the same `trainable`."""
        return [(s.members, s.trainable) for s in self.all] == [(s.members, s.trainable) for s in other.all]


NO_STACKS = Stacks({})


def members(p: Parameter) -> tuple[Parameter, ...]:
    """The user's parameters in a kernel parameter: the members of a stack, or the parameter itself."""
    return p.members if isinstance(p, Stack) else (p,)
