"""The sum of gradients over all shards, in their order: the same bits on every engine, and on every rank.

Dense gradients lie in one buffer, cut in a segment for each rank. All-to-all: every rank gets its segment of all shards
and adds them up in the order of shards; all-gather: all get the sums. As many bytes travel as in a ring of all-reduce,
whose order of sums is its own. Of tables every rank gets the rows that the shards use.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vpps.distributed.world import World
from vpps.engine.gradients import Gradients, RowGradients
from vpps.errors import DistributedError
from vpps.model.model import Lookup, Model, Parameter
from vpps.values import Float32


class Shard(NamedTuple):
    """What a rank has computed of one."""

    loss: float
    gradients: Gradients


class Spans(NamedTuple):
    """Where parameters lie in the buffer.

    Attributes:
        dense: trainable ones that are no tables, with their first float there.
        tables: trainable tables.
        segment: floats of a rank's part.
        digest: of names, shapes and what is trainable: all ranks must have the same.
    """

    dense: list[tuple[Parameter, int]]
    tables: list[Parameter]
    segment: int
    digest: int


class GradientSum:
    """Adds up the gradients of a model's shards.

    Args:
        world: whose ranks take part.
        model: has the parameters.
    """

    def __init__(self, world: World, model: Model) -> None:
        self._world, self._model = world, model
        self._spans = Spans([], [], 0, 0)
        self._known: tuple[object, ...] = ()
        self._flat = np.zeros((0, 0), np.float32)

    def __call__(self, shards: Sequence[Shard], step: int, flags: int, digest: int) -> tuple[float, Gradients]:
        """The sums of losses and of gradients.

        Args:
            shards: this rank's, in their order.
            step: number of the update that they are for.
            flags: any int that must be the same on all ranks.
            digest: of the weights, or 0.

        Returns:
            The loss; by name the sums of all trainable parameters, views of a buffer that the next call uses again; of
            tables the rows that some shard uses.

        Raises:
            DistributedError: another rank makes another step, has another model or other weights, has failed, or does
                not come.
        """
        spans = self._lay_out()
        self._agree(step, flags, digest, len(shards))
        rows = [[_rows_of(shard, table) for shard in shards] for table in spans.tables]
        losses = np.array([shard.loss for shard in shards], np.float64).view(np.int64)
        counts = np.array([len(one.rows) for of in rows for one in of], np.int64)
        said = np.stack(self._world.all_gather(np.concatenate([losses, counts])))
        by_rank = said.reshape(self._world.size, 1 + len(rows), len(shards))
        loss = float(sum(by_rank[:, 0].reshape(-1).view(np.float64).tolist()))
        total: Gradients = dict(self._dense(shards))
        for k, table in enumerate(spans.tables):
            total[table.name] = self._sparse(table, rows[k], by_rank[:, 1 + k])
        return loss, total

    def _agree(self, *mine: int) -> None:
        """Raise DistributedError unless all ranks are about to make the same step of the same model."""
        details = np.array([*mine, self._spans.digest], np.int64)
        found = self._world.meet("step", details.tolist())[:, : len(details)]
        if (found == found[0]).all():
            return
        for column, what in enumerate(("the number of its step", "what it calls", "its weights", "its number of shards",
                                       "its model (names, shapes, what is trainable)")):  # fmt: skip
            values, times = np.unique(found[:, column], return_counts=True)
            if len(values) > 1:
                usual = values[times.argmax()]
                odd = int(np.flatnonzero(found[:, column] != usual)[0])
                raise DistributedError(
                    f"{self._world.named(odd)} is not like the others in {what}, at step {mine[0]}: all must begin "
                    "with the same model and checkpoint, and make the same calls"
                )

    # ---- what is dense

    def _lay_out(self) -> Spans:
        """Where parameters lie, as the model is now."""
        known = tuple((p, p.trainable) for p in self._model)
        if known == self._known:
            return self._spans
        dense: list[tuple[Parameter, int]] = []
        tables: list[Parameter] = []
        at = 0
        for p in self._model:
            if p.trainable and isinstance(p, Lookup):
                tables.append(p)
            elif p.trainable:
                dense.append((p, at))
                at += math.prod(p.shape)
        said = repr([(p.name, p.shape, p.trainable, isinstance(p, Lookup)) for p in self._model])
        digest = int.from_bytes(hashlib.blake2b(said.encode(), digest_size=7).digest(), "little")
        self._known, self._spans = known, Spans(dense, tables, -(-at // self._world.size), digest)
        self._flat = np.zeros((len(self._world.mine), self._world.size * self._spans.segment), np.float32)
        return self._spans

    def _dense(self, shards: Sequence[Shard]) -> dict[str, Float32]:
        world, spans, flat = self._world, self._spans, self._flat
        for of_shard, shard in zip(flat, shards, strict=True):
            for p, at in spans.dense:
                place = of_shard[at : at + math.prod(p.shape)]
                gradient = shard.gradients.get(p.name)
                if gradient is None:
                    place.fill(0)
                else:
                    assert isinstance(gradient, np.ndarray)
                    np.copyto(place, gradient.reshape(-1))
        parts = flat.reshape(len(flat), world.size, spans.segment)
        sends = [np.ascontiguousarray(parts[:, r]) for r in range(world.size)]
        received = [sends[r] if r == world.rank else np.empty_like(sends[r]) for r in range(world.size)]
        world.exchange(sends, received)
        own = sum_in_order([part for of_rank in received for part in of_rank])
        sums = np.concatenate(world.all_gather(own))
        return {p.name: sums[at : at + math.prod(p.shape)].reshape(p.shape) for p, at in spans.dense}

    # ---- what is sparse

    def _sparse(self, table: Parameter, shards: Sequence[RowGradients], counts: NDArray[np.int64]) -> RowGradients:
        """
        Args:
            shards: this rank's.
            counts: (ranks, shards of each), their rows.
        """
        lengths = counts.sum(axis=1)
        numbers = np.concatenate(self._world.all_gather(np.concatenate([s.rows for s in shards]), lengths))
        values = np.concatenate(self._world.all_gather(np.concatenate([s.values for s in shards]), lengths))
        used, place = np.unique(numbers, return_inverse=True)
        total = np.zeros((len(used), *table.shape[1:]), np.float32)
        at = 0
        for n in counts.reshape(-1).tolist():  # no shard has a row twice
            total[place[at : at + n]] += values[at : at + n]
            at += n
        return RowGradients(used, total)


def sum_in_order(parts: Sequence[Float32]) -> Float32:
    """((first + second) + third) ..., a new array."""
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


def _rows_of(shard: Shard, table: Parameter) -> RowGradients:
    found = shard.gradients.get(table.name)
    if found is None:
        return RowGradients(np.zeros(0, np.int64), np.zeros((0, *table.shape[1:]), np.float32))
    assert isinstance(found, RowGradients)
    return found
