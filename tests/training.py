"""Training in float64: what any target must come near to, without another one to compare with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.reference import Reference, weights_of


class ReferenceTraining:
    """What a handle does, made of the reference's gradients and the optimizer's own reference.

    Args:
        model: whose weights it begins with; it stays as it is.
        clip_norm, ema: as of a handle.

    Attributes:
        weights, averages: after the updates so far, by name.
    """

    def __init__(
        self, model: vpps.Model, optimizer: vpps.Optimizer, clip_norm: float | None = None, ema: float | None = None
    ) -> None:
        self.model, self.optimizer, self.clip_norm, self.ema = model, optimizer, clip_norm, ema
        self.weights = weights_of(model)
        self.averages = {name: w.copy() for name, w in self.weights.items()}
        self.counts = dict.fromkeys(self.weights, 0)  # steps of each parameter
        self._moments = {name: [np.zeros_like(w) for _ in optimizer.moments] for name, w in self.weights.items()}
        self._sums: dict[str, NDArray[np.float64]] = {}
        self._rows: dict[str, set[int]] = {}

    def fb(self, graph: vpps.Graph, loss: vpps.Expression, accumulate: bool = False) -> float:
        """As of a handle, but for the loss that it returns: this call's."""
        reference = Reference(graph, self.weights)
        for name, gradient in reference.backward(loss).items():
            self._sums[name] = self._sums.get(name, 0.0) + gradient
        for p in self.model:
            if isinstance(p, vpps.Lookup):
                self._rows.setdefault(p.name, set()).update(int(r) for r in reference.touched_rows(p))
        if not accumulate:
            self._update()
        return float(reference.value(loss))

    def _update(self) -> None:
        # Random data: a gradient that is zero everywhere means that the loss does not touch the parameter.
        trainable = [p for p in self.model if p.trainable and np.any(self._sums[p.name])]
        norm = np.sqrt(sum(np.sum(self._sums[p.name] ** 2) for p in trainable))
        scale = 1.0 if self.clip_norm is None else min(1.0, self.clip_norm / norm)
        for p in trainable:
            rows: Any = sorted(self._rows[p.name]) if isinstance(p, vpps.Lookup) else slice(None)
            w, moments = self.weights[p.name], self._moments[p.name]
            self.counts[p.name] += 1
            old = [m[rows] for m in moments]
            w[rows], new = self.optimizer.reference(w[rows], self._sums[p.name][rows] * scale, old, self.counts[p.name])
            for m, n in zip(moments, new, strict=True):
                m[rows] = n
        if self.ema is not None:
            for name in (p.name for p in self.model if p.trainable):  # also of those that stay
                self.averages[name] += (1 - self.ema) * (self.weights[name] - self.averages[name])
        self._sums, self._rows = {}, {}
