"""Training in NumPy, float64: the expected results of updates, accumulated gradients and averages."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

import vpps
from vpps.ops.philox import launch_key
from vpps.reference import Reference

Arrays = dict[str, np.ndarray[Any, np.dtype[np.float64]]]


class Expected:
    """The expected model: dense arrays. In tables, an update changes only the rows that it touches.

    Args:
        model: provides the parameters, and which of them are trained.
        rule: the optimizer.
        decay: decay of the averages.
        clip: bound on the norm of all gradients.
        noise: standard deviation of relative errors in all gradients, to estimate the effect of rounding.

    Attributes:
        explodes: True if gradients were so large that their bounds can exceed 2^60, which makes a handle skip the step.
    """

    def __init__(
        self, model: vpps.Model, rule: vpps.Optimizer, decay: float, clip: float | None = None, noise: float = 0.0
    ) -> None:
        self.model = model
        self.clip = clip
        self.noise = noise
        self.rule = rule
        self.decay = decay
        self.weights: Arrays = {}
        self.moments: dict[str, list[np.ndarray[Any, Any]]] = {}
        self.averages: Arrays = {}
        self.averaged: set[str] = set()  # changed by an update; before it, averages are the weights
        self.updates = 0
        self.counts: dict[str, int] = {}  # steps of each parameter
        self.explodes = False
        self.declare()
        self.discard()

    def declare(self) -> None:
        """Add those parameters of the model that are new."""
        for p in (p for p in self.model if p.name not in self.weights):
            self.weights[p.name] = weights = p.numpy().astype(np.float64)
            self.moments[p.name] = [np.zeros_like(weights) for _ in self.rule.moments]
            self.averages[p.name], self.counts[p.name] = weights.copy(), 0

    def discard(self) -> None:
        self.calls = 0
        self.sums: Arrays = {}
        self.rows: dict[str, set[int]] = {}

    def accumulate(self, graph: vpps.Graph, loss: vpps.Expression, shard: int = 0) -> float:
        """Add the gradients of a call, or of one of its shards; returns the loss."""
        self.calls += not shard
        key = launch_key(self.model.seed, self.updates + 1, self.calls - 1)
        reference = Reference(graph, self.weights, key, shard)
        for name, gradient in reference.backward(loss).items():
            p = self.model[name]
            if name not in reference.reached:  # a missing gradient is not zero
                continue
            self.explodes |= not np.abs(gradient).max(initial=0) < 2**30
            if p.trainable:
                noise = 1 + self.noise * np.random.default_rng(self.calls).standard_normal(gradient.shape)
                self.sums[name] = self.sums.get(name, 0) + gradient * noise
                self.rows.setdefault(name, set()).update(reference.touched_rows(p).tolist())
        return float(reference.value(loss))

    def update(self) -> None:
        self.updates += 1
        norm = np.sqrt(sum(float((g * g).sum()) for name, g in self.sums.items() if self.model[name].trainable))
        factor = 1.0 if self.clip is None or norm <= self.clip else self.clip / norm
        for p in self.model:
            if not p.trainable:
                continue
            name = p.name
            rows: Any = sorted(self.rows.get(name, ())) if isinstance(p, vpps.Lookup) else slice(None)
            is_table = isinstance(p, vpps.Lookup)
            gradient = factor * self.sums.get(name, np.zeros(p.shape))
            if rows if is_table else name in self.sums:
                self.counts[name] += 1
                old, step = [m[rows] for m in self.moments[name]], self.counts[name]
                w, moments = self.rule.reference(self.weights[name][rows], gradient[rows], old, step)
                self.weights[name][rows] = w
                for m, new in zip(self.moments[name], moments, strict=True):
                    m[rows] = new
            self.averaged.add(name)
            self.averages[name] = self.decay * self.averages[name] + (1 - self.decay) * self.weights[name]
        self.discard()

    def state(self) -> dict[str, Any]:
        """Return a copy of the training state, as in a checkpoint."""
        names = "weights", "moments", "averages", "averaged", "updates", "counts", "calls", "sums", "rows"
        return copy.deepcopy({name: getattr(self, name) for name in names})

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to an earlier state."""
        self.__dict__.update(copy.deepcopy(state))

    def assign(self, name: str, value: np.ndarray[Any, Any]) -> None:
        self.weights[name] = value.astype(np.float64)
        if name not in self.averaged:
            self.averages[name] = self.weights[name].copy()

    def begin_average(self, name: str) -> None:
        self.averaged.discard(name)
        self.averages[name] = self.weights[name].copy()

    def average(self, p: vpps.Parameter) -> np.ndarray[Any, Any]:
        """Return a parameter's average, or its weights if it is not trained."""
        return self.averages[p.name] if p.trainable else self.weights[p.name]
