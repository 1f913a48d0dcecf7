"""Replay: a graph that is recorded and planned once, and launched often, with new values of its inputs.

A plan's script contains the values of the graph's inputs. A replay finds their words by planning twice, with different
values: only these words differ between the two scripts. It does so when a graph runs for the second time, because many
graphs never do.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vpps.engine.engine import Engine
from vpps.engine.gradients import Gradients, found_gradients
from vpps.engine.readback import places_of
from vpps.errors import ScriptError
from vpps.graph.graph import Graph
from vpps.kernel.shared_types import address
from vpps.ops.element import FLOAT32
from vpps.placement.distribution import NOTHING_HELD, ZERO, Pool
from vpps.planner.plan import Plan
from vpps.planner.planner import Planner
from vpps.record.rows import Rows
from vpps.session.handle import Handle
from vpps.turns import Turn, serialised
from vpps.values import Float32


class Span(NamedTuple):
    """Rows of floats in the pool, or words in a script: one piece, or pieces of equal length.

    Attributes:
        start: first float of all.
        shape: (rows, width).
        pieces: numbers of the pieces, counted from `start` on, in order; None if the rows are one piece.
        piece: length of a piece; `start` and all pieces begin at a multiple of it from each other.
    """

    start: int
    shape: tuple[int, int]
    pieces: NDArray[np.int64] | None = None
    piece: int = 1

    @classmethod
    def of(cls, starts: NDArray[np.integer], width: int) -> Span:
        """Return the span of rows that begin at these places. A row that begins at ZERO is all zeros."""
        n = len(starts)
        if not n:
            return cls(0, (0, width))
        first, last = int(starts[0]), int(starts[-1])
        in_order = last - first == (n - 1) * width and first != ZERO
        if in_order and starts.tobytes() == np.arange(first, last + 1, width).astype(starts.dtype).tobytes():
            return cls(first, (n, width))
        first, firsts = int(np.minimum.reduce(starts)), starts.astype(np.int64)
        if first == ZERO:
            index = firsts[:, None] + np.arange(width)
            index[firsts == ZERO] = ZERO
            return cls(0, (n, width), index.reshape(-1))
        firsts -= first
        piece = width
        if np.bitwise_or.reduce(firsts % width):
            piece = int(np.gcd.reduce(firsts, initial=width))
        firsts //= piece
        if piece < width:
            firsts = (firsts[:, None] + np.arange(width // piece)).reshape(-1)
        return cls(first, (n, width), firsts, piece)

    @property
    def key(self) -> slice | NDArray[np.int64]:
        """Index of a flat array that selects the floats."""
        if self.pieces is None:
            return slice(self.start, self.start + math.prod(self.shape))
        return (self.start + self.piece * self.pieces[:, None] + np.arange(self.piece)).reshape(-1)

    def read(self, pool: Float32, into: Floats) -> None:
        """Copy the floats from a pool in host memory."""
        if self.pieces is not None:
            _array(into, self.shape)[...] = self._taken(pool)
        elif isinstance(into, int):
            ctypes.memmove(into, address(pool) + FLOAT32.bytes * self.start, FLOAT32.bytes * math.prod(self.shape))
        else:
            into[...] = pool[self.start : self.start + math.prod(self.shape)].reshape(self.shape)

    def _taken(self, pool: Float32) -> Float32:
        assert self.pieces is not None
        stop = self.start + (int(self.pieces.max()) + 1) * self.piece
        return pool[self.start : stop].reshape(-1, self.piece).take(self.pieces, 0).reshape(self.shape)


Floats = int | Float32
"""Rows of floats (rows, width): an array, or the address of contiguous floats, which the caller keeps alive."""


def _array(floats: Floats, shape: tuple[int, ...]) -> Float32:
    """Return the floats as an array of this shape."""
    if not isinstance(floats, int):
        return floats
    memory: Any = (ctypes.c_float * math.prod(shape)).from_address(floats)
    return np.frombuffer(memory, FLOAT32.dtype).reshape(shape)


class Replay:
    """A graph with inputs whose values each run replaces.

    Runs compute the same bits as `Handle.forward` and `Handle.backward` on a graph recorded with these values. Nothing
    may be recorded in the graph afterwards, and its cells must not contain dropout.

    Args:
        handle: a training handle whose model no update changes.
        inputs: rows of `graph.rows`, each from a separate call; `values` of all calls are in this order.
        wanted: rows to compute.
        keeps: True to keep values for `backward`.
    """

    def __init__(
        self, handle: Handle, graph: Graph, inputs: Sequence[Rows], wanted: Sequence[Rows], keeps: bool
    ) -> None:
        self._handle, self._graph, self._inputs, self._wanted, self._keeps = handle, graph, inputs, wanted, keeps
        self._chunks = [_data_of(graph, rows) for rows in inputs]
        self._planner: Planner | None = None
        # For each input, its words and the rows that something reads; None until they are known.
        self._places: list[tuple[slice | NDArray[np.int64], Any]] | None = None

    @property
    def _turn(self) -> Turn:
        return self._handle._turn

    @property
    def nbytes(self) -> int:
        """Bytes of the inputs' values, in the graph and in the script."""
        return 2 * sum(chunk.nbytes for chunk in self._chunks)

    @serialised
    def forward(self, values: Sequence[Floats], out: Sequence[Floats]) -> int:
        """Compute the wanted rows.

        Args:
            values: values of the inputs.
            out: memory for the wanted rows.

        Returns:
            Number of the launch, for `backward`.

        Raises:
            CapacityError, HandleError, KernelError: as for `Handle.forward`.
        """
        engine = self._run(values)
        pool: Any = engine.machine.pool
        for span, into in zip(self._outputs, out, strict=True):
            span.read(pool, into)
        return engine.machine.launches

    @serialised
    def backward(
        self, launch: int, values: Sequence[Floats], seeds: Sequence[Floats | None], out: Sequence[Floats | None]
    ) -> Gradients:
        """Compute gradients after `forward`, without computing the values again if nothing else was launched since.

        Args:
            launch: result of `forward`.
            values: the same values as for `forward`.
            seeds: gradients of the wanted rows; None for zeros.
            out: memory for the inputs' gradients; None if a gradient is not needed.

        Returns:
            The gradients of the parameters by name.

        Raises:
            CapacityError, HandleError, KernelError: as for `Handle.backward`.
        """
        self._handle._check_usable()
        engine = self._handle._engine
        if launch != engine.machine.launches or engine.plan is not self._plan:
            engine = self._run(values)
        plan = self._plan

        def give(pool: Pool) -> None:
            at = plan.seeds
            for span, seed in zip(self._outputs, seeds, strict=True):
                stop = at + math.prod(span.shape)
                pool[at:stop] = 0 if seed is None else _array(seed, span.shape).reshape(-1)
                at = stop

        engine.store.park_gradients()
        engine.launch(plan, at_once=True, given=give, part=1)
        engine.wait()
        floats: Any = engine.machine.pool
        for span, into in zip(self._gradients, out, strict=True):
            if into is not None:
                span.read(floats, into)
        return found_gradients(plan, floats, engine.store.distribution)

    def _run(self, values: Sequence[Floats]) -> Engine:
        """Launch the forward with these values."""
        handle = self._handle
        handle._check_usable()
        engine = handle._engine
        engine.wait()
        if self._planner is None or self._planner is not engine.planner:
            self._make(values)
            engine = handle._engine
        else:
            self._replace(values)
        if self._keeps:
            engine.store.park_gradients()
        engine.launch(self._plan, at_once=True)
        engine.wait()
        return engine

    def _replace(self, values: Sequence[Floats]) -> None:
        """Replace the inputs' values in the script."""
        if self._places is None:
            self._find_places()
        assert self._places is not None
        script = self._plan.script
        for (place, rows), value, chunk in zip(self._places, values, self._chunks, strict=True):
            if isinstance(place, slice) and isinstance(value, int):
                ctypes.memmove(address(script) + FLOAT32.bytes * place.start, value, chunk.nbytes)
            else:
                script.view(FLOAT32.dtype)[place] = _array(value, chunk.shape)[rows].reshape(-1)

    def _make(self, values: Sequence[Floats]) -> None:
        """Plan with these values, for the current places of the parameters."""
        for chunk, value in zip(self._chunks, values, strict=True):
            chunk[...] = _array(value, chunk.shape)
        self._handle._configurator.interrupt()
        self._handle._configurator.prepare(self._graph, trains=self._keeps)
        self._plan = self._handle._configurator.kernel_for(self._graph, self._made, trains=self._keeps)
        self._places = None
        widths = [math.prod(rows.shape) for rows in self._wanted]
        self._outputs = [Span.of(places_of(self._plan, rows), w) for rows, w in zip(self._wanted, widths, strict=True)]
        self._gradients = [self._gradient_of(rows) for rows in self._inputs] if self._keeps else []
        self._planner = self._handle._engine.planner  # last: Ctrl-C may come before

    def _made(self, planner: Planner) -> Plan:
        if self._keeps:
            return planner.plan_halves(self._graph, self._wanted, None, 0, None, NOTHING_HELD)
        return planner.plan_forward(self._graph, self._wanted, self._handle._store.held_in_pool)

    def _gradient_of(self, rows: Rows) -> Span:
        found = np.full(len(self._plan.places), ZERO)  # no gradient: zeros
        found[self._plan.input_gradients[:, 0]] = self._plan.input_gradients[:, 1]
        return Span.of(found[rows.ids], math.prod(rows.shape))

    def _find_places(self) -> None:
        """Find the inputs' words in the script. Raises ScriptError if a value has several, if only a part of a row has
        words, or if other words of the script differ. A row that nothing reads has no words."""
        assert self._planner is not None
        total = sum(chunk.size for chunk in self._chunks)
        scripts = []
        for offset in (0, total):
            first = offset
            for chunk in self._chunks:
                chunk[...] = np.arange(first, first + chunk.size, dtype=np.uint32).view(np.float32).reshape(chunk.shape)
                first += chunk.size
            scripts.append(self._made(self._planner).script.copy())
        before, after = scripts
        place_of, is_read = np.zeros(total, np.int64), np.zeros(total, np.bool_)
        fits = len(before) == len(after) == len(self._plan.script)
        if fits:
            differs = before != after
            words = np.flatnonzero(differs)
            numbers = before[words].astype(np.int64)
            fits = bool((numbers < total).all()) and np.array_equal(before[~differs], self._plan.script[~differs])
        if fits:
            place_of[numbers], is_read[numbers] = words, True
            fits = is_read.sum() == len(words)
        reads = [part.reshape(chunk.shape) for part, chunk in zip(self._split(is_read), self._chunks, strict=True)]
        if not fits or any((read.any(1) != read.all(1)).any() for read in reads):
            raise ScriptError("a replay cannot find its inputs in the script; please report this")
        self._places = [
            (Span.of(own, 1).key, slice(None)) if read.all() else (own[read.reshape(-1)], read[:, 0])
            for own, read in zip(self._split(place_of), reads, strict=True)
        ]

    def _split(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Return the values of each input."""
        return np.split(values, np.cumsum([chunk.size for chunk in self._chunks])[:-1])


def _data_of(graph: Graph, rows: Rows) -> Float32:
    """Return the array in which the graph keeps the values of some rows of inputs."""
    for block in graph.blocks.values():
        for _, chunk in block.bulk:
            if chunk.data.size and chunk.first[0] == rows.ids[0]:
                return chunk.data
    raise ScriptError("the rows of a replay are not inputs of its graph; please report this")
