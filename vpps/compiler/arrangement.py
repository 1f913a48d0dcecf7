"""Specialisation of a kernel to a model: the weights that the chip holds, and the instructions in the kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from vpps.compiler.passes.nodes import compiled
from vpps.compiler.prepare import live_nodes, parts_of_units, prepare
from vpps.errors import SpillError
from vpps.kernel.chip import MEMORY_ONLY, Chip
from vpps.model.model import Parameter
from vpps.model.precisions import ALL_EXACT, Precisions
from vpps.ops import Form
from vpps.placement.distribution import OnChipPlace, Partition
from vpps.placement.onchip import (
    ChipOptions,
    Device,
    HeldMatrix,
    MatrixSpec,
    OnChip,
    nothing_left,
    plan_groups,
    step_down,
)
from vpps.placement.stacks import NO_STACKS, Stacks, members
from vpps.record.trace import TracedCell
from vpps.script.slices import TURN_BITS


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Placement of a model's weights during a launch.

    Attributes:
        chip: the weights that the kernel holds, and the memory around them.
        held: matrices that the chip holds, for the plan.
        onchip: the decisions and their reasons; None if there is nothing to decide for the target.
    """

    chip: Chip = MEMORY_ONLY
    held: Mapping[Parameter, OnChipPlace] | None = None
    onchip: OnChip | None = None


NO_CHIP = Arrangement()


def matrices_of(
    cells: Iterable[TracedCell], stacks: Stacks = NO_STACKS, precisions: Precisions = ALL_EXACT
) -> dict[Parameter, MatrixSpec]:
    """Return the matrices that multiply vectors in cells, with the division of their rows that suits their first cell.

    A matrix with any other use, such as a product with a computed matrix or a transpose, is left out: it stays in
    memory. `stacks` replace their members. `precisions`: the precisions of products.
    """
    found: dict[Parameter, MatrixSpec] = {}
    excluded: set[Parameter] = set()
    for cell in cells:
        nodes, outputs = prepare(compiled(cell, stacks)[0])
        live = live_nodes(nodes, outputs)
        parts = parts_of_units(nodes, live, 1)
        for i, node in enumerate(nodes):
            p = node.parameter
            if not live[i] or p is None:
                continue
            if node.finds_matrix_in_memory:
                excluded.add(p)
            elif node.op.form is Form.MATVEC and p not in found:
                rows, columns = p.shape
                dealt, element = (parts[i], parts[node.inputs[0]]), precisions.of(members(p)[0]).element
                found[p] = MatrixSpec(p.name, rows, columns, *dealt, p.trainable, element=element)
    return {p: spec for p, spec in found.items() if p not in excluded}


def arrangements(
    matrices: Mapping[Parameter, MatrixSpec],
    device: Device,
    vps: int,
    options: ChipOptions,
    train: bool,
    schedule: str = "vector",
) -> Iterator[Arrangement]:
    """Yield arrangements, the best first; each later one holds less in registers, in case the compiler spills.

    Args:
        vps: number of virtual processors in all groups.

    Raises:
        HandleError, CapacityError: a forced setting in `options` is malformed or does not fit.
        SpillError: no arrangement is left; the message names the forced settings.
    """
    specs = [spec if train else replace(spec, role_t_parts=0, trained=False) for spec in matrices.values()]
    if schedule == "paper" and options.groups is None:
        options = replace(options, groups=1)
    least = plan_groups(specs, device, vps, options)
    yield _arrangement(least, matrices)
    for smaller in step_down(least):
        least = smaller
        yield _arrangement(least, matrices)
    raise SpillError(nothing_left(least))


def _arrangement(onchip: OnChip, matrices: Mapping[Parameter, MatrixSpec]) -> Arrangement:
    places: dict[Parameter, OnChipPlace] = {}
    roles = {held.name: held for held in onchip.held}
    for p in matrices:
        forward, transposed = roles[p.name], roles.get(f"{p.name}^T")
        dealt = _dealt(forward), None if transposed is None else _dealt(transposed)
        if any(dealt):
            places[p] = OnChipPlace(*dealt, transposed is not None and transposed.tier == "atomic")
    return Arrangement(onchip.chip, places, onchip)


def _dealt(held: HeldMatrix) -> Partition | None:
    if not held.number:
        return None
    assert held.turn < 1 << TURN_BITS
    return Partition(held.number, held.parts, held.turn, held.first_vp)
