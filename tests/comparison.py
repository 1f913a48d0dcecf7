"""Compares a handle's results with the float64 reference, norm-wise per tensor, and across numbers of VPs, bitwise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.compiler.passes.common_subexpressions import common_subexpressions
from vpps.compiler.passes.constants import fold_constants
from vpps.compiler.prepare import live_nodes
from vpps.model.learned_policy import LearnedPolicy
from vpps.model.precisions import Precisions
from vpps.placement.onchip import ChipOptions
from vpps.record.arrays import BlockArrays
from vpps.record.distinct import PRODUCTS
from vpps.record.trace import TracedCell
from vpps.reference import Reference, key_of, weights_of

FORWARD_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-4
NEAR_TIES = {"bf16": 16, "tf32": 6}
"""Steps (`Precision.nearest_tie`) within which float32 may round the other way, because of errors in its sums."""
VP_COUNTS = (1, 7)
PAPER_VP_COUNTS = (2,)  # with schedule "paper"

Case = TypeVar("Case", bound=tuple[Any, ...])
Build = Callable[[vpps.Model], tuple[vpps.Graph, vpps.Expression]]


def relative_error(value: NDArray[np.floating], expected: NDArray[np.floating]) -> float:
    """Return the norm of the difference, divided by the norm of `expected`; 0 if both vanish."""
    difference = float(np.linalg.norm(np.asarray(value, np.float64) - expected))
    scale = float(np.linalg.norm(expected))
    if scale == 0:
        return difference
    return difference / scale


def contents_of(graph: vpps.Graph) -> list[Any]:
    """Return all recorded items except data."""
    found: list[Any] = [graph.n_calls, graph.n_values, graph.levels_of(np.arange(graph.n_values)).tolist()]
    for block in graph.blocks.values():
        b = BlockArrays(block)
        arrays = (b.calls, *b.values, b.levels, b.args, b.ints, *(a for xs in b.lists for a in (xs.ends, xs.elements)))
        assert all(a.dtype == np.int64 for a in arrays)
        found.append((block.cell.name, len(block), [a.tolist() for a in arrays]))
    return found


def rounds_alike(reference: Reference) -> bool:
    """Return True if a kernel rounds products' operands as a reference, after `backward`: if no operand is near the
    middle of two neighbours, and no cell repeats a product, which a kernel computes and rounds once."""
    if not reference.precisions.is_reduced:
        return True
    if reference.nearest_tie <= max(NEAR_TIES.get(name, 0) for name in reference.precisions.used):
        return False
    cells = [fold_constants(cell)[0] for cell in reference.graph.blocks]
    return all(_n_products(cell) == _n_products(common_subexpressions(cell)[0]) for cell in cells)


def _n_products(cell: TracedCell) -> int:
    live = live_nodes(cell.nodes, cell.outputs)
    return sum(used and n.op.form in PRODUCTS for n, used in zip(cell.nodes, live, strict=True))


def away_from_ties(build: Callable[[int], Case], precision: str | Mapping[str, str]) -> Case:
    """Build (a model, a graph, its loss, ...) with the first seed for which `rounds_alike` is true."""
    for seed in range(200):
        model, graph, loss, *_ = case = build(seed)
        reference = Reference(graph, weights_of(model), precisions=Precisions.given(precision))
        reference.backward(loss)
        if rounds_alike(reference):
            return case
    raise AssertionError("no seed is away from ties: fewer vertices or narrower vectors have fewer of them")


def assert_agrees_with_reference(
    model: vpps.Model,
    graph: vpps.Graph,
    loss: vpps.Expression,
    values: Iterable[vpps.Expression] = (),
    vp_counts: Iterable[int] = VP_COUNTS,
    policy: str | LearnedPolicy = "sinks-last",
    floor: float = 1e-6,
    train: bool = False,
    onchip: ChipOptions | None = None,
    precision: str | Mapping[str, str] = "float32",
) -> None:
    """Assert that loss, gradients and values agree with the reference, and are bitwise equal for all VP counts and
    schedules, and in inference.

    Args:
        floor: gradients with a smaller norm, relative to the largest, count as zero: cancellation left only rounding.
        train: with dropout.
        onchip: with several groups of virtual processors, under the schedule that supports them.
        precision: precision of products; if reduced, the graph must be `away_from_ties`.
    """
    key, precisions = key_of(model) if train else None, Precisions.given(precision)
    reference = Reference(graph, weights_of(model), key, precisions=precisions)
    expected_loss = float(reference.value(loss))
    expected = reference.backward(loss)
    largest = max((float(np.linalg.norm(g)) for g in expected.values()), default=0.0)
    first: tuple[float, dict[str, NDArray[np.float32]]] | None = None
    values = list(values)
    groups = (onchip.groups or 1) if onchip is not None else 1
    paper = PAPER_VP_COUNTS if groups == 1 else ()
    for vps, schedule in [*((n * groups, "vector") for n in vp_counts), *((n, "paper") for n in paper)]:
        with vpps.Handle(
            model, vps=vps, policy=policy, schedule=schedule, onchip=onchip, precision=precision
        ) as handle:
            got, gradients = handle.gradients(graph, loss, train=train)
            kept = [handle.value(e) for e in values]
            # Inference reuses the memory of values after their last reader.
            for e, value, again in zip(values, kept, handle.forward(graph, values) if not train else kept, strict=True):
                assert value.tobytes() == again.tobytes(), (
                    f"{e!r} differs in inference with {vps} VPs, schedule {schedule}: {value}, {again}"
                )
            for shape in {e.shape for e in values}:  # a tensor is the result of a batch of vertices
                batch = [i for i, e in enumerate(values) if e.shape == shape]
                value = np.stack([kept[i] for i in batch])
                error = relative_error(value, np.stack([reference.value(values[i]) for i in batch]))
                assert error <= FORWARD_TOLERANCE, f"values of shape {shape}: relative error {error:.1e} with {vps} VPs"
        # A sum of terms of both signs may be nearly zero. Its error is that of its terms, which are of order one.
        assert abs(got - expected_loss) <= FORWARD_TOLERANCE * max(abs(expected_loss), 1.0), (got, expected_loss)
        for name, g in gradients.items():
            if not model[name].trainable:
                assert not g.any(), f"gradient of {name}, which is not trainable"
                continue
            small = float(np.linalg.norm(expected[name])) <= floor * largest
            error = float(np.linalg.norm(g)) / max(largest, 1e-30) if small else relative_error(g, expected[name])
            assert error <= GRADIENT_TOLERANCE, f"gradient of {name}: relative error {error:.1e} with {vps} VPs"
        if first is None:
            first = got, gradients
        else:
            assert first[0] == got, f"loss with {vps} VPs, schedule {schedule}, differs"
            for name, g in gradients.items():
                assert np.array_equal(first[1][name], g), (
                    f"gradient of {name} differs with {vps} VPs, schedule {schedule}"
                )
