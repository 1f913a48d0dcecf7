"""Sums gradients over all shards, in shard order: every transport and every rank gets the same bits.

Dense gradients are in one buffer, with a segment for each rank. All-to-all: every rank gets its segment from all shards
and adds these up in shard order. All-gather: all ranks get the sums. Each rank tests its own segment for non-finite
values. This moves as many bytes as a ring all-reduce, which would sum in another order. If the pool has the same layout
on all ranks, the buffer is a piece of the pool. Otherwise (ranks with different cells can have different stacks) it
holds arrays in the users' format. A piece of a GPU's pool stays on the GPU if each rank has its own GPU and NCCL:
NumPy's functions also work on CuPy arrays. For tables, every rank gets the rows that the shards use; these rows are
exchanged through the host, together with the segments.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vpps.distributed.world import World
from vpps.engine.gradients import GradientPiece, Gradients, RowGradients, are_finite, summed_rows
from vpps.model.model import Lookup, Model, Parameter
from vpps.model.precisions import Precisions
from vpps.placement.distribution import Distribution
from vpps.values import Float32

LIKE = ("its model (names, shapes, trainability, precision)", "the number of its step", "its kind of call",
        "its number of shards", "its weights", "the number of mini-batches that it has drawn")  # fmt: skip
"""Values on which ranks must agree before a step, in words, in the order of the header."""


class Sums(NamedTuple):
    """Loss and gradients of one shard, or their sums over all shards.

    Attributes:
        loss: the sum of losses.
        is_finite: for sums over all shards: True if loss and gradients may be used for a step.
        gradients: gradients by name; for tables the rows in use. If there is a `piece`, only tables are listed here.
        piece: dense gradients in the layout of the pool.
        touched: names of the dense parameters that the loss depends on; parameters in `gradients` may be missing here.
    """

    loss: float
    gradients: Gradients
    piece: GradientPiece | None = None
    is_finite: bool = True
    touched: frozenset[str] = frozenset()

    def kept(self) -> Sums:
        """Return a copy that does not depend on the pool."""
        copied = {
            name: RowGradients(g.rows, g.values.copy()) if isinstance(g, RowGradients) else g
            for name, g in self.gradients.items()
        }
        return self._replace(gradients=copied, piece=None if self.piece is None else self.piece.copied())


@dataclass(frozen=True, slots=True)
class BufferLayout:
    """Layout of the parameters in a buffer that holds the users' arrays.

    Attributes:
        dense: trainable parameters except tables, each with the offset of its first float.
        floats: size of the buffer.
        tables: trainable tables.
        digest: digest of names, shapes, trainability and precisions; must be the same on all ranks.
    """

    dense: list[tuple[Parameter, int]] = field(default_factory=list)
    floats: int = 0
    tables: list[Parameter] = field(default_factory=list)
    digest: int = 0


class GradientSum:
    """Adds up the gradients of a model's shards, over the ranks of a world.

    Attributes:
        any_gradient: True if any shard of the agreed step has a gradient.
    """

    def __init__(self, world: World, model: Model, precisions: Precisions) -> None:
        self._world, self._model, self._precisions = world, model, precisions
        self._buffer = BufferLayout()
        self._known: tuple[object, ...] = ()
        self._digested: tuple[Distribution | None, int] = None, 0
        self._received: list[Float32] = []
        self._values = np.zeros(0, np.float32)  # values of all ranks' rows
        self._lengths: list[list[int]] = []  # numbers of table rows, and of floats in them, by rank
        self._alike = False  # True if the pool has the same layout for all shards of the step
        self._gpus: list[int] = []  # `World.gpu_number` of all ranks
        self.any_gradient = False

    def agree(
        self, shards: Sequence[Sums], step: int, kind: int, digest: int, drawn: int, gpu: bytes, n_new: int
    ) -> bool:
        """Begin a step on all ranks.

        Args:
            shards: shards of this rank, in their order.
            step: number of their update.
            kind: kind of the call, an int that must be the same on all ranks.
            digest: digest of the weights, or 0.
            drawn: number of mini-batches that this rank has drawn; the shards belong to the latest one.
            gpu: identity of the pool's GPU, or b"".
            n_new: number of cells that this rank has first met in this step.

        Returns:
            True if some rank has met new cells.

        Raises:
            DistributedError: another rank is at another step, has a different model or different weights, has failed,
                or does not answer.
        """
        self._lay_out()
        layouts = {self._places_digest(shard.piece) for shard in shards}
        layout = layouts.pop() if len(layouts) == 1 else 0
        has_any = any(shard.piece is not None or shard.gradients for shard in shards)
        rows = [one for of_table in self._rows(shards) for one in of_table]
        lengths = [sum(len(one.rows) for one in rows), sum(one.values.size for one in rows)]
        alike = [self._buffer.digest, step, kind, len(shards), digest, drawn]
        mine = [*alike, layout, self._world.gpu_number(gpu), n_new, has_any, *lengths]
        found = self._world.meet("step", mine)
        for what, values in zip(LIKE, found.T.tolist(), strict=False):
            self._world.check_alike(values, f"{what}, at step {step}")
        layouts_of_ranks, self._gpus, new, gradients, *lengths_of_ranks = found.T[len(alike) : len(mine)].tolist()
        self._lengths = lengths_of_ranks
        self._alike = bool(layout) and set(layouts_of_ranks) == {layout}
        self.any_gradient = any(gradients)
        return any(new)

    def __call__(self, shards: Sequence[Sums], pieces: bool) -> Sums:
        """Return the sums of losses and gradients; call `agree` first.

        Args:
            shards: the shards that were given to `agree`.
            pieces: True if the total may be a piece of the pool.

        Raises:
            DistributedError: a rank does not answer.
        """
        world, alike = self._world, self._alike and pieces
        on_gpus_of_their_own = 0 not in self._gpus and len(set(self._gpus)) == len(self._gpus)  # NCCL requires it
        if not (alike and on_gpus_of_their_own):
            shards = [s if s.piece is None else s._replace(piece=s.piece.on_host()) for s in shards]
        own = [shard.piece for shard in shards if shard.piece is not None]
        buffers = [piece.floats for piece in own] if alike else self._users_arrays(shards)
        total = buffers[-1]
        each = max(1, -(-len(total) // world.size))
        parts = [total[r * each : (r + 1) * each] for r in range(world.size)]  # the last parts may be shorter
        ints, values = self._rows_to_exchange(shards)
        sends, received = self._segments_to_exchange(buffers, each)
        world.exchange(
            [(r, array) for r in range(world.size) for array in (ints[world.rank], values[world.rank], sends[r])],
            [(r, array) for r in range(world.size) for array in (ints[r], values[r], received[r])],
        )
        segment = parts[world.rank]
        sum_in_order([part for of_rank in received for part in np.atleast_2d(of_rank)], segment)
        if not are_finite([segment]):
            segment[:1] = np.nan  # tells the other ranks, which test only the first element
        world.exchange([(r, segment) for r in range(world.size)], list(enumerate(parts)))
        loss = float(sum(np.concatenate([of_rank[: len(shards)] for of_rank in ints]).view(np.float64).tolist()))
        tables = self._sums_of_rows(ints, values, len(shards))
        is_finite = math.isfinite(loss) and are_finite([total[::each], *(table.values for table in tables.values())])
        masks = [of_rank[len(shards) :][: self._mask_words].view(np.uint8) for of_rank in ints]
        mask = np.unpackbits(np.bitwise_or.reduce(masks), count=len(self._buffer.dense)).tolist()
        touched = [one for one, has in zip(self._buffer.dense, mask, strict=True) if has]
        names = frozenset(p.name for p, _ in touched)
        if alike:
            return Sums(loss, {**tables}, own[-1], is_finite, names)
        dense = {p.name: total[at : at + math.prod(p.shape)].reshape(p.shape) for p, at in touched}
        return Sums(loss, {**tables, **dense}, None, is_finite, names)

    @property
    def _mask_words(self) -> int:
        """Number of words in the bit mask of touched dense parameters."""
        return -(-len(self._buffer.dense) // 64)

    def _mask(self, shards: Sequence[Sums]) -> NDArray[np.int64]:
        """Return the bit mask of the dense parameters that at least one shard touches."""
        names = frozenset[str]().union(*(shard.touched | shard.gradients.keys() for shard in shards))
        bits = np.zeros(64 * self._mask_words, np.uint8)
        bits[: len(self._buffer.dense)] = [p.name in names for p, _ in self._buffer.dense]
        return np.packbits(bits).view(np.int64)

    def _places_digest(self, piece: GradientPiece | None) -> int:
        """Return a digest of a piece's layout; 0 for None."""
        distribution = None if piece is None else piece.distribution
        if distribution is None or self._digested[0] is not distribution:
            places = [] if distribution is None else [(p.name, f.gradient) for p, f in distribution.places.items()]
            panel = 0 if distribution is None else distribution.panel
            self._digested = distribution, _digest((places, panel)) if places else 0
        return self._digested[1]

    def _lay_out(self) -> None:
        """Compute the buffer layout if the model has changed."""
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
            digest = _digest(
                [
                    (p.name, p.shape, p.trainable, isinstance(p, Lookup), self._precisions.of(p).name)
                    for p in self._model
                ]
            )
            self._known, self._buffer = known, BufferLayout(dense, at, tables, digest)

    # ---- dense gradients

    def _users_arrays(self, shards: Sequence[Sums]) -> list[Float32]:
        """Return a buffer of users' arrays for each shard."""
        layout = self._buffer
        buffers = np.zeros((len(shards), layout.floats), np.float32)
        for buffer, shard in zip(buffers, shards, strict=True):
            found = shard.gradients if shard.piece is None else shard.piece.arrays()
            for p, at in layout.dense:
                if (gradient := found.get(p.name)) is not None:
                    assert isinstance(gradient, np.ndarray)
                    buffer[at : at + gradient.size] = gradient.reshape(-1)
        return list(buffers)

    def _segments_to_exchange(self, buffers: Sequence[Float32], each: int) -> tuple[list[Float32], list[Float32]]:
        """Return two lists by rank: the segments to send to that rank; room for the segments received from it."""
        world = self._world
        segments = [slice(r * each, (r + 1) * each) for r in range(world.size)]
        if len(buffers) == 1:
            sends = [buffers[0][s] for s in segments]
        else:
            sends = [np.stack([buffer[s] for buffer in buffers]) for s in segments]
        own = sends[world.rank]
        # Reuse the memory in every step: allocating it takes longer than using it.
        if not self._received or self._received[0].shape != own.shape or type(self._received[0]) is not type(own):
            self._received = [np.empty_like(own) for _ in sends]
        received = self._received.copy()
        received[world.rank] = own
        return sends, received

    # ---- sparse gradients

    def _rows(self, shards: Sequence[Sums]) -> list[list[RowGradients]]:
        """Return the rows by table and shard."""
        return [[_rows_of(shard, table) for shard in shards] for table in self._buffer.tables]

    def _rows_to_exchange(self, shards: Sequence[Sums]) -> tuple[list[NDArray[np.int64]], list[Float32]]:
        """Return two lists of arrays by rank, filled for this rank, empty for the others. The first holds losses, the
        mask of touched parameters, the count of rows by table, and row numbers; the second holds the rows' values."""
        own, tables = self._world.rank, self._rows(shards)
        n_rows, n_floats = self._lengths
        ends = np.cumsum(n_floats)
        if len(self._values) < ends[-1]:
            self._values = np.empty(ends[-1] + ends[-1] // 4, np.float32)
        values = np.split(self._values[: ends[-1]], ends[:-1])
        rows = [one for of_table in tables for one in of_table]
        np.concatenate([_NO_FLOATS, *(one.values.reshape(-1) for one in rows)], out=values[own])
        losses = np.array([shard.loss for shard in shards], np.float64).view(np.int64)
        counts = np.array([sum(len(one.rows) for one in of_table) for of_table in tables], np.int64)
        n_more = len(shards) + self._mask_words + len(tables)
        ints = [np.empty(n_more + n, np.int64) for n in n_rows]
        np.concatenate([losses, self._mask(shards), counts, *(one.rows for one in rows)], out=ints[own])
        return ints, values

    def _sums_of_rows(
        self, ints: Sequence[NDArray[np.int64]], values: Sequence[Float32], n: int
    ) -> dict[str, RowGradients]:
        """Return the summed rows by table, from the exchanged arrays of all ranks with `n` shards each."""
        found, tables = {}, self._buffer.tables
        n += self._mask_words
        begins = [(n + len(tables), 0)] * len(ints)
        for k, table in enumerate(tables):
            counts = [int(of_rank[n + k]) for of_rank in ints]
            floats = math.prod(table.shape[1:])
            ends = [(i + m, v + m * floats) for (i, v), m in zip(begins, counts, strict=True)]
            spans = list(zip(begins, ends, strict=True))
            numbers = np.concatenate([ints[r][i:j] for r, ((i, _), (j, _)) in enumerate(spans)])
            if len(numbers) and not (numbers.min() >= 0 and numbers.max() < table.shape[0]):
                self._world.give_up(f"another rank sent gradients of rows that table {table.name!r} does not have")
            if len(tables) == 1:  # the rows of consecutive ranks are adjacent in memory
                rows = self._values[: len(numbers) * floats]
            else:
                rows = np.concatenate([values[r][v:w] for r, ((_, v), (_, w)) in enumerate(spans)])
            if len(numbers):  # else no shard uses the table, and the table is not updated
                found[table.name] = summed_rows(numbers, rows.reshape(-1, *table.shape[1:]))
            begins = ends
        return found


@np.errstate(over="ignore", invalid="ignore")  # the caller tests for finite values afterwards
def sum_in_order(parts: Sequence[Float32], out: Float32) -> None:
    """Compute ((first + second) + third) + ... in the memory of the first part; `out` may be any of the parts."""
    total = parts[0]
    for part in parts[1:-1]:
        total += part
    if len(parts) > 1:
        np.add(total, parts[-1], out=out)
    else:
        out[...] = total


_NO_FLOATS = np.zeros(0, np.float32)


def _digest(value: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=7).digest(), "little")


def _rows_of(shard: Sums, table: Parameter) -> RowGradients:
    found = shard.gradients.get(table.name)
    if found is None:
        return RowGradients(np.zeros(0, np.int64), np.zeros((0, *table.shape[1:]), np.float32))
    assert isinstance(found, RowGradients)
    return found
