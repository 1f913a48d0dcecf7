"""The sum of gradients over all shards, in their order: the same bits on every transport, and on every rank.

Dense gradients lie in one buffer, cut in a segment for each rank. All-to-all: every rank gets its segment of all shards
and adds them up in the order of shards; all-gather: all get the sums. As many bytes travel as in a ring of all-reduce,
whose order of sums is its own. The buffer is a piece of the pool, as it is, where that is laid out alike on all ranks;
else it holds the user's arrays: a rank whose shards had other cells may have stacked other weights. A piece of a pool
on a GPU stays there, if all ranks have one of their own and NCCL: NumPy's functions are CuPy's for arrays of CuPy.
Of tables every rank gets the rows that the shards use, through the host.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vpps.distributed.transports.nccl import gpu_number
from vpps.distributed.world import World
from vpps.engine.gradients import GradientPiece, Gradients, RowGradients
from vpps.model.model import Lookup, Model, Parameter
from vpps.placement.distribution import Distribution
from vpps.values import Float32

LIKE = ("its model (names, shapes, what is trainable)", "the number of its step", "what it calls",
        "its number of shards", "its weights")  # fmt: skip
"""What ranks tell each other before a step, in which they must agree."""


class Sums(NamedTuple):
    """Of one shard, or of all.

    Attributes:
        loss: the sum of losses.
        gradients: by name; without dense ones where there is a piece. Of tables the rows that are used.
        piece: the dense ones as they lie in the pool.
    """

    loss: float
    gradients: Gradients
    piece: GradientPiece | None = None

    def kept(self) -> Sums:
        """The same, whatever becomes of the pool."""
        return self if self.piece is None else self._replace(piece=self.piece.copied())

    def on_host(self) -> Sums:
        """The same, in the memory of the host."""
        return self if self.piece is None else self._replace(piece=self.piece.on_host())


@dataclass(frozen=True, slots=True)
class BufferLayout:
    """Where parameters lie in a buffer of the user's arrays.

    Attributes:
        dense: trainable ones that are no tables, with their first float there.
        floats: of the buffer.
        tables: trainable tables.
        digest: of names, shapes and what is trainable: all ranks must have the same.
    """

    dense: list[tuple[Parameter, int]] = field(default_factory=list)
    floats: int = 0
    tables: list[Parameter] = field(default_factory=list)
    digest: int = 0


class GradientSum:
    """Adds up the gradients of a model's shards.

    Args:
        world: whose ranks take part.
        model: has the parameters.

    Attributes:
        any_gradient: whether a shard of the step that all have agreed on has a gradient.
    """

    def __init__(self, world: World, model: Model) -> None:
        self._world, self._model = world, model
        self._buffer = BufferLayout()
        self._known: tuple[object, ...] = ()
        self._digested: tuple[Distribution | None, int] = None, 0
        self._received: list[Float32] = []
        self._alike = False  # whether the pool is laid out alike for all shards of the step
        self._gpus: list[int] = []  # numbers of all ranks' GPUs
        self.any_gradient = False

    def agree(self, shards: Sequence[Sums], step: int, kind: int, digest: int, gpu: bytes, n_new: int) -> bool:
        """Begin a step.

        Args:
            shards: this rank's, in their order.
            step: number of the update that they are for.
            kind: of call, an int that must be the same on all ranks.
            digest: of the weights, or 0.
            gpu: identity of the GPU that the pool is on, or b"".
            n_new: cells that this rank has met first in this step.

        Returns:
            Whether some rank has met new cells.

        Raises:
            DistributedError: another rank makes another step, has another model or other weights, has failed, or does
                not come.
        """
        self._lay_out()
        layouts = {self._places_digest(shard.piece) for shard in shards}
        layout = layouts.pop() if len(layouts) == 1 else 0
        has_any = any(shard.piece is not None or shard.gradients for shard in shards)
        mine = [self._buffer.digest, step, kind, len(shards), digest, layout, gpu_number(gpu), n_new, has_any]
        found = self._world.meet("step", mine)
        for what, values in zip(LIKE, found.T.tolist(), strict=False):
            usual = Counter(values).most_common(1)[0][0]  # as rank 0 has it, if others are as many
            odd = next((r for r, value in enumerate(values) if value != usual), None)
            if odd is not None:
                self._world.give_up(
                    f"{self._world.named(odd)} is not like the others in {what}, at step {step}: all must begin with "
                    "the same model and checkpoint, and make the same calls"
                )
        layouts_of_ranks, self._gpus, new, gradients = found.T[len(LIKE) : len(LIKE) + 4].tolist()
        self._alike = bool(layout) and set(layouts_of_ranks) == {layout}
        self.any_gradient = any(gradients)
        return any(new)

    def __call__(self, shards: Sequence[Sums], pieces: bool) -> Sums:
        """The sums of losses and of gradients, after all have agreed to add them up.

        Args:
            pieces: whether the total may be a piece of the pool.

        Raises:
            DistributedError: a rank does not come.
        """
        tables, alike = self._buffer.tables, self._alike and pieces
        if not (alike and self._world.reaches_gpus(self._gpus)):
            shards = [shard.on_host() for shard in shards]
        rows = [[_rows_of(shard, table) for shard in shards] for table in tables]
        losses = np.array([shard.loss for shard in shards], np.float64).view(np.int64)
        counts = np.array([len(one.rows) for of in rows for one in of], np.int64)
        said = np.stack(self._world.all_gather(np.concatenate([losses, counts])))
        by_rank = said.reshape(self._world.size, 1 + len(tables), len(shards))
        total: Gradients = {
            table.name: self._sparse(table, rows[k], by_rank[:, 1 + k]) for k, table in enumerate(tables)
        }
        loss = float(sum(by_rank[:, 0].reshape(-1).view(np.float64).tolist()))
        own = [shard.piece for shard in shards if shard.piece is not None]
        if alike:
            self._add_up([piece.floats for piece in own])
            return Sums(loss, total, own[-1])
        return Sums(loss, {**total, **self._users_arrays(shards)})

    def _places_digest(self, piece: GradientPiece | None) -> int:
        """A number for what lies where in a piece; 0 for none."""
        distribution = None if piece is None else piece.distribution
        if distribution is None or self._digested[0] is not distribution:
            places = [] if distribution is None else [(p.name, f.gradient) for p, f in distribution.places.items()]
            panel = 0 if distribution is None else distribution.panel
            self._digested = distribution, _digest((places, panel)) if places else 0
        return self._digested[1]

    def _lay_out(self) -> None:
        """Find where parameters lie, as the model is now."""
        known = tuple((p, p.trainable) for p in self._model)
        if known != self._known:
            dense: list[tuple[Parameter, int]] = []
            tables: list[Parameter] = []
            at = 0
            for p in self._model:
                if p.trainable and isinstance(p, Lookup):
                    tables.append(p)
                elif p.trainable:
                    dense.append((p, at))
                    at += math.prod(p.shape)
            digest = _digest([(p.name, p.shape, p.trainable, isinstance(p, Lookup)) for p in self._model])
            self._known, self._buffer = known, BufferLayout(dense, at, tables, digest)

    # ---- what is dense

    def _users_arrays(self, shards: Sequence[Sums]) -> dict[str, Float32]:
        layout = self._buffer
        buffers = np.zeros((len(shards), layout.floats), np.float32)
        for buffer, shard in zip(buffers, shards, strict=True):
            found = shard.gradients if shard.piece is None else shard.piece.arrays()
            for p, at in layout.dense:
                if (gradient := found.get(p.name)) is not None:
                    assert isinstance(gradient, np.ndarray)
                    buffer[at : at + gradient.size] = gradient.reshape(-1)
        self._add_up(list(buffers))
        total = buffers[-1]
        return {p.name: total[at : at + math.prod(p.shape)].reshape(p.shape) for p, at in layout.dense}

    def _add_up(self, buffers: Sequence[Float32]) -> None:
        """Let the last of this rank's buffers be the sum of them and all others'."""
        world, total = self._world, buffers[-1]
        each = -(-len(buffers[0]) // world.size)
        segments = [slice(r * each, (r + 1) * each) for r in range(world.size)]  # the last ones may be shorter
        if len(buffers) == 1:
            sends = [buffers[0][s] for s in segments]
        else:
            sends = [np.stack([buffer[s] for buffer in buffers]) for s in segments]
        received = self._room(world.size, sends[world.rank])
        received[world.rank] = sends[world.rank]
        world.exchange(sends, received)
        parts = [total[s] for s in segments]
        parts[world.rank][...] = sum_in_order([part for of_rank in received for part in np.atleast_2d(of_rank)])
        world.exchange([parts[world.rank]] * world.size, parts)

    def _room(self, n: int, like: Float32) -> list[Float32]:
        """Arrays to receive into, the same ones in every step: new memory takes longer than what is done with it."""
        if not self._received or self._received[0].shape != like.shape or type(self._received[0]) is not type(like):
            self._received = [np.empty_like(like) for _ in range(n)]
        return self._received.copy()

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
    """((first + second) + third) ..., in the memory of the first."""
    total = parts[0]
    for part in parts[1:]:
        total += part
    return total


def _digest(value: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=7).digest(), "little")


def _rows_of(shard: Sums, table: Parameter) -> RowGradients:
    found = shard.gradients.get(table.name)
    if found is None:
        return RowGradients(np.zeros(0, np.int64), np.zeros((0, *table.shape[1:]), np.float32))
    assert isinstance(found, RowGradients)
    return found
