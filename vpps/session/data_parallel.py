"""Steps of training that several processes make together: each computes its shards of a mini-batch."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

from vpps.compiler.passes.cell_history import CellHistory
from vpps.distributed.world import World
from vpps.engine.gradients import GradientPiece, RowGradients, found_gradients
from vpps.engine.options import Options
from vpps.engine.serialised import serialised
from vpps.errors import DistributedError, HandleError, NoGradientError, NonFiniteError
from vpps.graph.graph import Graph
from vpps.model.model import Model
from vpps.model.state import AccumulatedGradients
from vpps.ops.operand import Expression
from vpps.ops.philox import StepKey
from vpps.session.gradient_sum import GradientSum, Sums
from vpps.session.halves import Halves


class Shard(NamedTuple):
    """What `fb` was given, and what came of it."""

    graph: Graph
    loss: Expression
    accumulate: bool
    sums: Sums


class DataParallel(Halves):
    """A handle whose gradients are sums over all ranks of a world.

    Every rank gets the sums and makes the same update of its own, so that all have the same weights, to the bit. For
    that all must know of the same cells: these decide which parameters are stacked, and with that the order of sums.
    Where a rank meets cells that are new to it, all take over what is new, in the order of shards, and compute the
    gradients of that step once more.
    """

    def __init__(self, model: Model, options: Options) -> None:
        self._world: World | None = None
        self._shards: list[Shard] = []  # of the step that is being made
        self._begun: tuple[object, ...] = ()  # the state of training when its latest shard was given
        self._compared = -1  # the step after which weights were compared
        super().__init__(model, options)
        self._sum: GradientSum | None = None
        if options.world is not None and options.world.shards > 1:
            self._world, self._is_shared, self._sum = options.world, True, GradientSum(options.world, model)
            self._know_history()

    def _check(self, graph: Graph, what: str, training: bool) -> None:
        super()._check(graph, what, training)
        if self._world is not None and self.model.cell_history is not self._history:  # restored, on all ranks
            self._know_history()

    def _know_history(self) -> None:
        """All ranks know of the same cells now."""
        if self.model.cell_history is None:
            self.model.cell_history = CellHistory()
        self._history: CellHistory = self.model.cell_history
        self._common = len(self._history.cells), self._history.orders

    @serialised
    def close(self) -> None:
        """Wait for the launch in flight, copy the weights back to the model, end the threads. May be called twice."""
        given, self._shards = len(self._shards), []
        super().close()
        if given:
            what = f"{given} of the {len(self._mine)} shards of a step were given to fb, which therefore was not made"
            warnings.warn(what, RuntimeWarning, stacklevel=3)

    @serialised
    def apply(self, gradients: Mapping[str, Any], accumulate: bool = False) -> None:
        if self._shards:
            self._refuse("apply", "give fb the others first")
        given = self._given(gradients, accumulate)
        if self._sum is None:
            self._apply(given, accumulate)
            return
        found = {
            name: RowGradients(given.rows[name], gradient) if name in given.rows else gradient
            for name, gradient in given.gradients.items()
        }
        try:
            self._make_step([Sums(0.0, found)], accumulate)
        except Exception as error:
            self._tell(error)
            raise

    apply.__doc__ = Halves.apply.__doc__

    @property
    def _mine(self) -> range:
        """Numbers of the shards that this process computes."""
        return range(1) if self._world is None else self._world.mine

    def _key(self, train: bool, draw: int = 0) -> StepKey | None:
        """Masks follow the shard, whichever rank has it."""
        key = super()._key(train, draw)
        if key is None or self._world is None:
            return key
        return StepKey(key.seed, key.step, key.accumulated * self._world.shards + self._mine[len(self._shards)])

    def _refuse(self, what: str, remedy: str) -> None:
        raise HandleError(
            f"{what}: {len(self._shards)} of the {len(self._mine)} shards of this rank were given for a step; {remedy}"
        )

    # ---- shards of a step

    def _fb_shard(self, graph: Graph, loss: Expression, accumulate: bool) -> None:
        """Gradients of one shard; with the last of them the step."""
        assert self._world is not None
        if self._shards and self._begun != self._state():
            self._shards = []
            raise HandleError(
                "fb: weights or what was accumulated have changed since the first shards of this step were given, or "
                "the loop over batches() was left; these are forgotten, begin the step again"
            )
        if self._shards and self._shards[0].accumulate != accumulate:
            self._refuse("fb", f"accumulate={accumulate} is not what these had")
        before = self._shards
        try:
            shard = Shard(graph, loss, accumulate, self._shard(graph, loss))
            self._shards = []  # whatever ends this call ends the step
            if len(before) + 1 == len(self._mine):
                self._make_step([s.sums for s in (*before, shard)], accumulate, [*before, shard])
            else:
                with self._engine.machine.in_order:
                    self._shards = [*before, shard._replace(sums=shard.sums.kept())]
                self._begun = self._state()
        except BaseException as error:
            self._shards = []
            self._tell(error)
            raise

    def _state(self) -> tuple[object, ...]:
        """Of training: another one, and shards would be of different weights."""
        store = self._store
        store.note_changes()
        assert self._world is not None
        return self._world.abandoned, self.model.step, store.accumulated, store.changes, self.model.state_version

    def _tell(self, error: BaseException) -> None:
        """Tell the other ranks of an error, unless they have it as well, or this is Ctrl-C, which they get, too."""
        of_all = DistributedError | NoGradientError | NonFiniteError
        if self._world is not None and isinstance(error, Exception) and not isinstance(error, of_all):
            self._world.fail(error)

    def _shard(self, graph: Graph, loss: Expression) -> Sums:
        """Its loss and gradients; none where it depends on no parameter."""
        configurator = self._configurator
        configurator.prepare(graph, trains=True)
        key = self._key(train=True)
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
        return Sums(machine.loss(plan.loss_slot), tables, GradientPiece.of(plan, machine.pool, distribution))

    def _again(self, shards: list[Shard]) -> list[Sums]:
        """The same with the stacks that all ranks have now."""
        found: list[Sums] = []
        try:
            for shard in shards:
                sums = self._shard(shard.graph, shard.loss)
                with self._engine.machine.in_order:
                    found.append(sums.kept() if len(found) + 1 < len(shards) else sums)
                self._shards = shards[: len(found)]  # whose number its masks follow
        finally:
            self._shards = []
        return found

    # ---- the step

    def _make_step(self, sums: list[Sums], accumulate: bool, shards: list[Shard] | None = None) -> None:
        """Add up what all ranks have, and update with the sums.

        Args:
            shards: what they are of; None where gradients were given.
        """
        assert self._sum is not None
        kept = bool(accumulate or self._store.accumulated)
        kind = int(accumulate) + 2 * (shards is not None) + 4 * kept
        step, digest, machine = self.model.step + 1, self._digest(), self._engine.machine
        if self._sum.agree(sums, step, kind, digest, machine.gpu, self._n_new()):
            self._take_over()
            if shards is not None:
                sums, machine = self._again(shards), self._engine.machine
            self._sum.agree(sums, step, kind, digest, machine.gpu, 0)
        if shards is not None and not self._sum.any_gradient:
            raise NoGradientError(
                "the loss depends on no trainable parameter, in no shard of any rank, so there is nothing to learn; "
                "use handle.forward to evaluate it"
            )
        with machine.in_order:
            total = self._sum(sums, pieces=not kept)
        given = AccumulatedGradients(1)
        for name, gradient in total.gradients.items():
            if isinstance(gradient, RowGradients):
                given.rows[name], given.gradients[name] = gradient
            else:
                given.gradients[name] = gradient
        self._apply(given, accumulate, None if shards is None else total.loss, total.piece)
        self._know_history()

    def _n_new(self) -> int:
        """Cells that this rank has met since all knew of the same ones."""
        return 0 if self.model.cell_history is None else len(self.model.cell_history.cells) - self._common[0]

    def _take_over(self) -> None:
        """Let all ranks know of all new cells, in the order of shards, and of none in another order."""
        assert self._world is not None
        assert self.model.cell_history is not None
        cells, (n, orders) = self.model.cell_history.cells, self._common
        new = CellHistory(cells[n:]).as_json()["cells"]
        told: dict[str, Any] = {}
        for cell in (cell for of_rank in self._world.gather(json.dumps(new)) for cell in json.loads(of_rank)):
            told.setdefault(json.dumps(cell), cell)
        named = {p.name: p for p in self.model}
        union = CellHistory.from_json({"cells": list(told.values()), "orders": []}, named)
        self.model.cell_history = CellHistory([*cells[:n], *union.cells], orders)

    def _digest(self) -> int:
        """Of weights and what belongs to them, when it is time to compare them; else 0."""
        assert self._world is not None
        step = self.model.step
        if self._compared >= 0 and (step % self._world.check_every or step == self._compared):
            return 0
        self._compared = step
        self.pull_weights()
        digest = hashlib.blake2b(repr((self.model.seed, step)).encode(), digest_size=7)
        state, averages = self.model.optimizer_state, self.model.averages
        kept = [] if state is None else list(state.moments.values())
        kept += [] if averages is None else [averages.values]
        for p in self.model:
            digest.update(p.host.data)
            for arrays in kept:
                if p.name in arrays:
                    digest.update(arrays[p.name].data)
        return int.from_bytes(digest.digest(), "little")
