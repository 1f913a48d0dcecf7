"""Steps of training that several processes make together: each computes its shards of a mini-batch."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

from vpps.distributed.world import World
from vpps.engine.gradients import Piece, RowGradients, found_gradients
from vpps.engine.options import Options
from vpps.engine.serialised import serialised
from vpps.errors import NoGradientError
from vpps.graph.graph import Graph
from vpps.model.model import Model
from vpps.model.state import AccumulatedGradients
from vpps.ops.operand import Expression
from vpps.ops.philox import StepKey
from vpps.session.gradient_sum import GradientSum, Sums
from vpps.session.halves import Halves


class DataParallel(Halves):
    """A handle whose gradients are sums over all ranks of a world.

    Every rank gets the sums and makes the same update of its own, so that all have the same weights, to the bit.
    """

    def __init__(self, model: Model, options: Options) -> None:
        super().__init__(model, options)
        world = options.world
        self._world: World | None = None if world is None or world.shards == 1 else world
        self._is_shared = self._world is not None
        self._shards: list[Sums] = []  # of the step that is being made
        self._sum = None if self._world is None else GradientSum(self._world, model)
        self._compared = -1  # the step after which weights were compared

    def close(self) -> None:
        """Wait for the launch in flight, copy the weights back to the model, end the threads. May be called twice."""
        if self._shards:
            warnings.warn(
                f"{len(self._shards)} of {len(self._mine)} shards of a step were given to fb, so it was not made",
                RuntimeWarning,
                stacklevel=2,
            )
            self._shards = []
        super().close()

    @serialised
    def apply(self, gradients: Mapping[str, Any], accumulate: bool = False) -> None:
        given = self._given(gradients, accumulate)
        if self._sum is None:
            self._apply(given, accumulate)
            return
        found = {
            name: RowGradients(given.rows[name], gradient) if name in given.rows else gradient
            for name, gradient in given.gradients.items()
        }
        self._make_step([Sums(0.0, found)], accumulate, with_loss=False)

    apply.__doc__ = Halves.apply.__doc__

    @property
    def _mine(self) -> range:
        """Numbers of the shards that this process computes."""
        return range(1) if self._world is None else self._world.mine

    def _fb_shard(self, graph: Graph, loss: Expression, accumulate: bool) -> None:
        """Gradients of one shard; with the last of them the step."""
        assert self._world is not None
        try:
            shard = self._shard(graph, loss)
        except Exception as error:
            self._world.fail(error)
            raise
        if len(self._shards) + 1 < len(self._mine):
            with self._engine.machine.in_order:
                self._shards.append(shard.kept())
            return
        shards, self._shards = [*self._shards, shard], []
        self._make_step(shards, accumulate)

    def _shard(self, graph: Graph, loss: Expression) -> Sums:
        """Its loss and gradients; none where it depends on no parameter."""
        assert self._world is not None
        configurator, number = self._configurator, self._mine[len(self._shards)]
        configurator.prepare(graph, trains=True)
        seed, step, accumulated = astuple(self._store.next_key())
        key = StepKey(seed, step, accumulated * self._world.shards + number)  # masks follow the shard, not the rank
        try:
            plan = configurator.kernel_for(
                graph, lambda p: p.plan_training(graph, loss, None, self._engine.parity, key)
            )
        except NoGradientError:
            held = self._store.held_in_pool
            plan = configurator.kernel_for(graph, lambda p: p.plan_forward(graph, [loss], held, key))
            self._run(plan)
            return Sums(float(self._values(plan, [loss])[0]), {})
        self._engine.wait()
        self._store.park_gradients()
        self._run(plan)
        machine, distribution = self._engine.machine, self._store.distribution
        tables = found_gradients(plan, machine.pool, distribution, dense=False)
        return Sums(machine.loss(plan.loss_slot), tables, Piece.of(plan, machine.pool, distribution))

    def _make_step(self, shards: list[Sums], accumulate: bool, with_loss: bool = True) -> None:
        """Add up what all ranks have, and update with the sums."""
        assert self._sum is not None
        kept = bool(accumulate or self._store.accumulated)
        call = int(accumulate) + 2 * int(with_loss) + 4 * kept
        digest, machine = self._digest(), self._engine.machine
        with machine.in_order:
            total = self._sum(shards, self.model.step + 1, call, digest, pieces=not kept, gpu=machine.gpu)
        given = AccumulatedGradients(1)
        for name, gradient in total.gradients.items():
            if isinstance(gradient, RowGradients):
                given.rows[name], given.gradients[name] = gradient
            else:
                given.gradients[name] = gradient
        self._apply(given, accumulate, total.loss if with_loss else None, total.piece)

    def _digest(self) -> int:
        """Of weights and what belongs to them, when it is time to compare them; else 0."""
        assert self._world is not None
        step = self.model.step
        if self._compared >= 0 and (step % self._world.check_every or step == self._compared):
            return 0
        self._compared = step
        self.pull_weights()
        digest = hashlib.blake2b(repr((self.model.seed, step)).encode(), digest_size=7)
        state = self.model.optimizer_state
        for p in self.model:
            digest.update(p.host.data)
            for moments in (state.moments if state is not None else {}).values():
                if p.name in moments:
                    digest.update(moments[p.name].data)
        return int.from_bytes(digest.digest(), "little")
