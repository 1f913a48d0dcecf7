"""The cell compiler: static passes on traced cells, a module for each.

Passes over nodes (`constants`, `common_subexpressions`, `dead_outputs`, `horizontal`) leave nodes their numbers,
because messages name them. Passes over instructions (`fusion`, `chaining`) work after lowering. Only what leaves every
bit as it is counts as an identity.

A **stack** (`placement/stacks.py`) is made where all cells that were trained multiply its members by the same vector,
and unmade (the handle places all parameters anew) when a cell does not. It is summed in another order than its members,
so which cells were trained belongs to the model and its checkpoints (`cell_history.py`).

What `lazy_batching` cuts by is a fact of the graph (`record/topology.py`), so the cut is one of each plan, kept per
cell and fact. The *tails* that `fusion` makes (`script/tails.py`), identified by their program and not by sizes, are
part of the kernel on cuda and simt; on cpu they are a small library beside it, compiled when first needed."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from vpps.config import PASSES
from vpps.errors import HandleError
from vpps.hints import hinted
from vpps.values import as_flag


@dataclass(frozen=True, slots=True)
class Passes:
    """What the cell compiler does with every cell. For studies: the defaults are what is fastest.

    Attributes:
        horizontal: several products of one vector are one product with the stacked matrices.
        lazy_batching: of a recurrent cell, operators that read nothing of other vertices of the recurrence run for all
            vertices before its first level, and those that none of these reads after its last (Cavs, section 3.4).
        fusion: elementwise operators between products are one instruction, generated for the cell.
        streaming: what runs before the first level fills the time that virtual processors would wait at barriers.
    """

    horizontal: bool = True
    lazy_batching: bool = True
    fusion: bool = True
    streaming: bool = True

    def __post_init__(self) -> None:
        for f in fields(self):
            as_flag(getattr(self, f.name), f"Passes({f.name})", HandleError)

    @classmethod
    def from_environment(cls) -> Passes:
        """As VPPS_PASSES says: comma-separated `all`, `none`, `name` or `-name`, from left to right.

        Raises:
            HandleError: an unknown name.
        """
        found = cls()
        names = [f.name for f in fields(cls)]
        for word in filter(None, (w.strip() for w in PASSES.get().split(","))):
            on, name = word[0] != "-", word.lstrip("-")
            if word in ("all", "none"):
                found = cls(**dict.fromkeys(names, word == "all"))
            elif name in names:
                found = replace(found, **{name: on})
            else:
                raise HandleError(
                    f"{PASSES.name}={PASSES.get()}: {name!r} is no pass; there are all, none, {', '.join(names)}, and "
                    "each with a minus before it"
                )
        return found


Passes.__init__ = hinted(Passes.__init__)  # type: ignore[method-assign]
