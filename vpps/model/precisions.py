"""Precision of the products with each parameter of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vpps.model.model import Lookup, Parameter
from vpps.ops.precision import EXACT, PRECISIONS, Precision

OTHERS = "*"
"""Key for all unnamed parameters in a mapping of precisions."""


@dataclass(frozen=True, slots=True)
class Precisions:
    """Precisions of all matrices in a model.

    Attributes:
        others: name of the precision of all unnamed parameters.
        named: sorted pairs (name of a parameter, name of its precision).
    """

    others: str = EXACT.name
    named: tuple[tuple[str, str], ...] = ()

    @classmethod
    def given(cls, value: str | Mapping[str, str]) -> Precisions:
        """Parse a user's value: one precision for all, or a mapping by parameter name, with "*" for all others."""
        if isinstance(value, str):
            return cls(value)
        named = sorted((name, precision) for name, precision in value.items() if name != OTHERS)
        return cls(value.get(OTHERS, EXACT.name), tuple(named))

    @property
    def written(self) -> str | dict[str, str]:
        """The value in the form that `given` accepts."""
        others = {} if self.others == EXACT.name else {OTHERS: self.others}
        return {**others, **dict(self.named)} if self.named else self.others

    def describe(self) -> str:
        """Return the precisions in words."""
        return ", ".join([f"precision {self.others}", *(f"{precision} in {name}" for name, precision in self.named)])

    @property
    def used(self) -> frozenset[str]:
        """Names of all precisions in use."""
        return frozenset((self.others, *dict(self.named).values()))

    @property
    def is_reduced(self) -> bool:
        """True if any product may round its operands."""
        return any(PRECISIONS[name].is_reduced for name in self.used)

    def of(self, p: Parameter) -> Precision:
        """Return the precision of products with a parameter. Only matrices that are not tables are multiplied."""
        if len(p.shape) != 2 or isinstance(p, Lookup):
            return EXACT
        return PRECISIONS[dict(self.named).get(p.name, self.others)]


ALL_EXACT = Precisions()
