"""Passes that the cell compiler runs on traced cells, one module per pass.

Passes over nodes (`constants`, `common_subexpressions`, `dead_outputs`, `horizontal`) keep the nodes' numbers,
because messages name them. Passes over instructions (`fusion`, `chaining`) work after lowering. A rewrite must not
change a bit of any result.

A **stack** (`placement/stacks.py`) is made if all trained cells multiply its members by the same vector. If a later
cell does not, the stack is undone: the handle places all parameters again. Stacking changes the order in which
gradients are summed, so the set of trained cells belongs to the model and its checkpoints (`cell_history.py`).

`lazy_batching` splits a cell by properties of the graph (`record/topology.py`), so each plan has its own split, cached
by cell and properties. A *tail* from `fusion` (`script/tails.py`) is identified by its program, not by sizes. Tails are
part of the kernel on cuda and simt; on cpu, they are a small separate library, compiled on first use."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from vpps.config import PASSES
from vpps.errors import HandleError
from vpps.hints import hinted
from vpps.values import as_flag


@dataclass(frozen=True, slots=True)
class Passes:
    """Passes that the cell compiler runs on every cell. The defaults are fastest; other settings are for studies.

    Attributes:
        horizontal: replace several products of one vector with one product of the stacked matrices.
        lazy_batching: split recurrent cells (Cavs, section 3.4). Operators that read nothing of the recurrence run for
            all vertices before its first level; operators that the recurrence does not read run after its last level.
        fusion: fuse elementwise operators between products into one instruction, generated for the cell.
        streaming: run some operators not before the first level, but while virtual processors would wait at barriers.
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
        """Read VPPS_PASSES: comma-separated `all`, `none`, `name` or `-name`, applied from left to right.

        Raises:
            HandleError: a name is unknown.
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
                    f"{PASSES.name}={PASSES.get()}: {name!r} is not a pass; expected all, none, {', '.join(names)}, "
                    "or one of the names with a minus in front"
                )
        return found


Passes.__init__ = hinted(Passes.__init__)  # type: ignore[method-assign]
