"""Stacks: parameters of the user that lie one after the other in the pool and are one to the kernel.

A stack of matrices of equal width has the rows of the first one, then those of the second, and so on; a stack of
vectors their elements. Its members' rows are whole panels, so weights, gradient, moments and average of a member are a
range of the stack's; of the packed transpose a member has some columns.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vpps.model.model import Parameter


class Stack(Parameter):
    """Several parameters as one; plans use it in their place. The model does not know it: it has no values here.

    Attributes:
        members: at least two, of equal shapes, all trainable or none.
    """

    __slots__ = ("members",)

    def __init__(self, members: Sequence[Parameter]) -> None:
        self.members = tuple(members)
        first = self.members[0]
        self._model = weakref.ref(first.model)
        self._name = "+".join(p.name for p in members)
        self._shape = (len(members) * first.shape[0], *first.shape[1:])
        self._trainable = first.trainable
        self.is_transposed = False  # then it would not be stacked


@dataclass(frozen=True, slots=True)
class Stacks:
    """All stacks of a model.

    Attributes:
        of: the stack of each of their members.
        orders: of matrices that cells let be stacked, also where something else did not.
    """

    of: dict[Parameter, Stack]
    orders: tuple[tuple[Parameter, ...], ...] = ()

    @classmethod
    def made_of(cls, members: Iterable[Sequence[Parameter]]) -> Stacks:
        """A stack for each group of members."""
        return cls({p: stack for stack in map(Stack, members) for p in stack.members})

    @property
    def all(self) -> list[Stack]:
        """Each once."""
        return list(dict.fromkeys(self.of.values()))

    def same_as(self, other: Stacks) -> bool:
        """Whether the same parameters are stacked in the same order, and trained alike."""
        return [(s.members, s.trainable) for s in self.all] == [(s.members, s.trainable) for s in other.all]


NO_STACKS = Stacks({})


def members(p: Parameter) -> tuple[Parameter, ...]:
    """The user's parameters that one of the kernel's is made of."""
    return p.members if isinstance(p, Stack) else (p,)
