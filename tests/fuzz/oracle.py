"""Compares a handle's results with the float64 reference, norm-wise per tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import vpps
from tests.comparison import FORWARD_TOLERANCE, GRADIENT_TOLERANCE, relative_error, rounds_alike
from vpps.model.precisions import ALL_EXACT, Precisions
from vpps.ops.philox import LaunchKey
from vpps.reference import Reference

Array = NDArray[Any]

SATURATING = ("tanh", "sigmoid")
"""Ops whose gradient is a difference of their value and 1 or 0: in saturation only its rounding is left."""


LARGEST = float(np.finfo(np.float32).max)


class Perturbed(Reference):
    """A reference that rounds: every operand of every op changes in its seventh digit. Results that this changes much
    are not determined by single precision (the larger of two equal numbers, a difference of large numbers) and are not
    compared, nor are infinite results or results computed from them."""

    def __init__(
        self, graph: vpps.Graph, weights: Mapping[str, Array], key: LaunchKey | None, precisions: Precisions, seed: int
    ) -> None:
        self._random = np.random.default_rng(seed)
        super().__init__(graph, weights, key, precisions=precisions)

    def _forward(self, batch: Any) -> None:
        super()._forward(batch)
        nodes = batch.block.cell.nodes
        for i, node in enumerate(nodes):
            if node.op.name in SATURATING:
                batch.nodes[i] = self._perturbed(batch.nodes[i])
        for k, o in enumerate(batch.block.cell.outputs):
            self._values[nodes[o].shape][self._slot[batch.block.values[k][batch.rows]]] = _in_range(batch.nodes[o])

    def _perturbed(self, x: Array) -> Array:
        return _in_range(x * (1 + 1e-7 * self._random.standard_normal(x.shape)))

    def _operands(self, batch: Any, i: int) -> list[Array]:
        operands = super()._operands(batch, i)
        if hasattr(self, "_useful"):  # backward
            return operands
        offsets = id(batch.offsets(batch.block.cell.nodes[i].domain)) if batch.block.cell.nodes[i].domain else 0
        return [self._perturbed(x) if x.dtype.kind == "f" and id(x) != offsets else x for x in operands]


def _in_range(x: Array) -> Array:
    """Replace numbers outside single precision by infinity."""
    found: Array = np.where(np.abs(x) > LARGEST, np.copysign(np.inf, x), x) if x.dtype.kind == "f" else x
    return found


class Oracle:
    """Expected loss, values and gradients of a graph, each with the largest error that rounding can cause."""

    def __init__(
        self,
        graph: vpps.Graph,
        loss: vpps.Expression,
        weights: Mapping[str, Array],
        key: LaunchKey | None = None,
        precisions: Precisions = ALL_EXACT,
    ) -> None:
        self.arguments = graph, weights, key, precisions
        self.loss = loss
        self.reference = Reference(graph, weights, key, precisions=precisions)
        self.gradients = self.reference.backward(loss)
        self.largest = max((float(np.linalg.norm(g)) for g in self.gradients.values()), default=0.0)
        self._perturbed: list[Perturbed] = []

    def perturbed(self) -> list[Perturbed]:
        """Return references that simulate rounding."""
        if not self._perturbed:
            self._perturbed = [Perturbed(*self.arguments, seed) for seed in range(3)]
            for reference in self._perturbed:
                reference.backward(self.loss)
        return self._perturbed

    def diagnostic(
        self,
        value: float,
        gradients: Mapping[str, Array],
        model: vpps.Model,
        used: Sequence[vpps.Expression] = (),
        values: Sequence[Array] = (),
    ) -> tuple[str, list[str]] | None:
        """Return the error, if any, and lines that show it with `reference`, `loss`, `value`, `gradients`, `used` and
        `values`. Nothing if a kernel may round the operands of products differently from the reference."""
        if not rounds_alike(self.reference):
            return None
        if wrong := self._wrong_loss(value):
            return wrong, [
                "print(value, right := float(reference.value(loss)))",
                "assert abs(value - right) <= 1e-5 * max(abs(right), 1)",
            ]
        if wrong := self._wrong_values(used, values):
            return wrong, [
                "for v, right in ((v, reference.value(e)) for e, v in zip(used, values)):",
                "    assert np.linalg.norm(v - right) <= 1e-5 * np.linalg.norm(right), (v, right)",
            ]
        if at := self._wrong_gradient(gradients, model):
            name, wrong = at
            return wrong, [
                f'right, found = reference.backward(loss)["{name}"], gradients["{name}"]',
                "print(found, right, sep='\\n')",
                "assert np.linalg.norm(found - right) <= 1e-4 * np.linalg.norm(right)",
            ]
        return None

    @staticmethod
    def _is_rounding(error: float, moved: list[float]) -> bool:
        """Return True if rounding can explain an error, given its effect on some references."""
        return not np.isfinite(moved).all() or error <= 10 * max(moved)

    def _wrong_loss(self, value: float) -> str | None:
        expected = float(self.reference.value(self.loss))
        error, allowed = abs(value - expected), FORWARD_TOLERANCE * max(abs(expected), 1.0)
        if error <= allowed or not np.isfinite(expected):
            return None
        if self._is_rounding(error, [abs(float(p.value(self.loss)) - expected) for p in self.perturbed()]):
            return None
        return f"loss {value} in place of {expected}"

    def _wrong_values(self, used: Sequence[vpps.Expression], values: Sequence[Array]) -> str | None:
        """Compare tensors, each the result of a batch of vertices."""
        for shape in {e.shape for e in used}:
            some = [e for e in used if e.shape == shape]
            expected = np.stack([self.reference.value(e) for e in some])
            value = np.stack([v for e, v in zip(used, values, strict=True) if e.shape == shape])
            error = relative_error(value, expected)
            if not error <= FORWARD_TOLERANCE and np.isfinite(expected).all():
                moved = [relative_error(np.stack([p.value(e) for e in some]), expected) for p in self.perturbed()]
                if not self._is_rounding(error, moved):
                    return f"values of shape {shape}: relative error {error:.1e}"
        return None

    def _wrong_gradient(self, gradients: Mapping[str, Array], model: vpps.Model) -> tuple[str, str] | None:
        for name, gradient in gradients.items():
            expected = self.gradients[name]
            if not model[name].trainable:
                if gradient.any():
                    return name, f"gradient of {name}, which is not trained"
                continue
            scale = max(float(np.linalg.norm(expected)), 1e-2 * self.largest)  # cancellation leaves rounding
            error = float(np.linalg.norm(gradient - expected))
            if not error <= GRADIENT_TOLERANCE * scale and np.isfinite(expected).all():
                moved = [float(np.linalg.norm(p.gradients[name] - expected)) for p in self.perturbed()]
                if not self._is_rounding(error, moved):
                    return name, f"gradient of {name}: relative error {error / max(scale, 1e-30):.1e}"
        return None


def reference_of(graph: str, train: bool = False, precisions: Precisions = ALL_EXACT) -> list[str]:
    """Return lines that make `reference`."""
    key = ", key_of(model)" if train else ""
    if precisions != ALL_EXACT:
        key += f", precisions=Precisions.given({precisions.written!r})"
    imported = "from vpps.reference import Reference, key_of, weights_of"
    lines = [imported, f"reference = Reference({graph}, weights_of(model){key})"]
    return lines if precisions == ALL_EXACT else ["from vpps.model.precisions import Precisions", *lines]
