"""Which precision the products with each parameter of a model have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vpps.model.model import Lookup, Parameter
from vpps.ops.precision import EXACT, PRECISIONS, Precision

OTHERS = "*"
"""In a mapping of precisions: all parameters that are not named."""


@dataclass(frozen=True, slots=True)
class Precisions:
    """Of all matrices of a model.

    Attributes:
        others: name of that of all that are not named.
        named: (parameter, precision) by names, sorted.
    """

    others: str = EXACT.name
    named: tuple[tuple[str, str], ...] = ()

    @classmethod
    def given(cls, value: str | Mapping[str, str]) -> Precisions:
        """What a user wrote: one for all, or by names of parameters, with "*" for all others."""
        if isinstance(value, str):
            return cls(value)
        named = sorted((name, precision) for name, precision in value.items() if name != OTHERS)
        return cls(value.get(OTHERS, EXACT.name), tuple(named))

    @property
    def written(self) -> str | dict[str, str]:
        """As `given` takes it."""
        others = {} if self.others == EXACT.name else {OTHERS: self.others}
        return {**others, **dict(self.named)} if self.named else self.others

    def describe(self) -> str:
        """In words."""
        return ", ".join([f"precision {self.others}", *(f"{precision} in {name}" for name, precision in self.named)])

    @property
    def used(self) -> frozenset[str]:
        """Names of all that occur."""
        return frozenset((self.others, *dict(self.named).values()))

    @property
    def is_reduced(self) -> bool:
        """Whether anything may be rounded."""
        return any(PRECISIONS[name].is_reduced for name in self.used)

    def of(self, p: Parameter) -> Precision:
        """That of products with a parameter: of all but matrices, and of tables, nothing is multiplied."""
        if len(p.shape) != 2 or isinstance(p, Lookup):
            return EXACT
        return PRECISIONS[dict(self.named).get(p.name, self.others)]


ALL_EXACT = Precisions()
