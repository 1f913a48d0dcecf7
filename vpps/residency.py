"""Keeps a model and its copy in a handle's pool in step: places it there, uploads what is newer here, fetches what is
newer there.

The model's arrays are newer after an assignment or a restore, the pool's after an update. While a launch is running,
only what plans the next one may be called: `adopt`, `next_key`, `next_update`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vpps.model import Model, Parameter
from vpps.ops.philox import LaunchKey, launch_key
from vpps.optim import Optimizer, OptimizerState
from vpps.plan.distribution import ONE, Distribution
from vpps.plan.update import Update
from vpps.runtime.cpu import CpuMachine


class Residency:
    """What of a model lives in the pool of a machine.

    Args:
        kind: of the optimizer whose moments live there; None for inference, which needs neither moments nor gradients.
    """

    def __init__(self, model: Model, machine: CpuMachine, kind: type[Optimizer] | None) -> None:
        self.model = model
        self.machine = machine
        self.kind = kind
        self._distribution: Distribution | None = None
        self._layout = -1  # the model's layout that it was made for
        self._versions: dict[Parameter, int] = {}  # of the weights in the pool
        self._state_version = -1  # of the optimizer's state, adopted
        self._moments_are_current = False
        self._dirty = False  # the pool's weights are newer than the model's
        self._since = 0  # the model's step when the optimizer's moments began

    # ---- where things are

    @property
    def distribution(self) -> Distribution:
        """Places of the parameters, once they are bound."""
        assert self._distribution is not None
        return self._distribution

    @property
    def is_bound(self) -> bool:
        """Whether the parameters have their places, those that the model has now."""
        return self._distribution is not None and self._layout == self.model.layout_version

    def bind(self, reserve: Callable[[int], None]) -> Distribution:
        """Place all parameters as the model has them now; what the pool held is lost.

        Args:
            reserve: makes the pool large enough, or raises.
        """
        self._distribution = None
        layout = self.model.layout_version
        n_moments = len(self.kind.moments) if self.kind is not None else 0
        distribution = Distribution(
            self.model, self.machine.vps, self.machine.panel, n_moments, train=self.kind is not None
        )
        reserve(distribution.end)
        self.machine.pool[: distribution.end] = 0
        self.machine.pool[ONE] = 1
        self._versions.clear()
        self._moments_are_current = False
        self._distribution, self._layout = distribution, layout
        return distribution

    # ---- from the model to the pool

    def adopt(self) -> None:
        """Take over the optimizer's state where the model has got another one (by restore, or another handle)."""
        if self._state_version == self.model.state_version:
            return
        state = self._saved_state()
        self._since = self.model.step if state is None else state.since
        self._moments_are_current = False
        self._state_version = self.model.state_version

    def _saved_state(self) -> OptimizerState | None:
        """The model's optimizer state, if it is this optimizer's."""
        state = self.model.optimizer_state
        return state if state is not None and self.kind is not None and state.optimizer == self.kind.name else None

    def upload(self) -> None:
        """Bring the pool up to the model."""
        distribution, pool = self.distribution, self.machine.pool
        for p in distribution.places:
            if self._versions.get(p) != p.version:
                distribution.store_weights(pool, p, p.host)
                self._versions[p] = p.version
        if self.kind is not None and not self._moments_are_current:
            state = self._saved_state()
            for p, place in distribution.places.items():
                for name, address in zip(self.kind.moments, place.moments, strict=False):
                    saved = state.moments[name].get(p.name) if state is not None else None
                    zeros = np.zeros(p.shape, np.float32)
                    distribution.store(pool, p, address, zeros if saved is None else saved)
            self._moments_are_current = True

    # ---- steps of training

    def next_key(self) -> LaunchKey:
        """Of the random numbers of the next step."""
        return launch_key(self.model.seed, self.model.step + 1)

    def next_update(self, optimizer: Optimizer, clip_norm: float | None) -> Update:
        """The next step. Its number counts from when the moments began: another optimizer may have trained before."""
        number = self.model.step + 1
        return Update(optimizer, number, number - self._since, clip_norm)

    def count_update(self) -> None:
        """An update begins: the pool's weights will be newer than the model's."""
        self.model.step += 1
        self._dirty = True

    def restorer(self) -> Callable[[], None]:
        """A function that sets back the count of updates to what it is now."""
        step = self.model.step

        def restore() -> None:
            self.model.step = step

        return restore

    # ---- from the pool to the model

    @property
    def is_newer(self) -> bool:
        """Whether the pool holds what the model has not got yet."""
        return self._dirty

    def pull(self) -> None:
        """Bring the model up to the pool."""
        if self._dirty:
            self._pull_weights()
            self._dirty = False

    def _pull_weights(self) -> None:
        assert self.kind is not None
        distribution, pool = self.distribution, self.machine.pool
        state = self._saved_state()
        kept = state.moments if state is not None else {}
        moments = {name: dict(kept.get(name, {})) for name in self.kind.moments}  # of parameters frozen by now
        for p, place in distribution.places.items():
            if not p.trainable:
                continue
            p.host = distribution.fetch(pool, p, place.weights)
            p.version += 1
            self._versions[p] = p.version
            for name, address in zip(self.kind.moments, place.moments, strict=True):
                moments[name][p.name] = distribution.fetch(pool, p, address)
        self.model.optimizer_state = OptimizerState(self.kind.name, moments, self._since)
