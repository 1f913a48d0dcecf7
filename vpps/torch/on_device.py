"""Recurrent layers on a GPU: all copies are from device to device, and a call returns before the GPU has computed.

Every copy between tensors and our memory is in PyTorch's current stream, and `CudaMachine.lent` orders these copies and
the launches. So PyTorch's allocator knows all uses of a tensor's memory. A later call, or `handle.close()`, reports a
launch that fails.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from vpps.engine.engine import Engine
from vpps.errors import ModelError
from vpps.graph.graph import Graph
from vpps.model.model import Parameter
from vpps.ops.element import WORD_BYTES
from vpps.placement.distribution import Distribution, Pool
from vpps.planner.plan import Plan
from vpps.record.rows import Rows
from vpps.runtime.cuda import CudaMachine
from vpps.runtime.driver import DeviceMemory, Driver
from vpps.session.replay import Replay
from vpps.torch.chains import Batch, Config, Grads, Stack, Token, _Cells
from vpps.torch.layouts import Layout
from vpps.turns import serialised
from vpps.values import Float32


class DeviceTensors:
    """Calls of PyTorch that need a GPU."""

    def stream(self, device: Any) -> int:
        """Return PyTorch's current stream."""
        return int(torch.cuda.current_stream(device).cuda_stream)

    def over(self, driver: Driver, memory: DeviceMemory) -> Any:
        """Return a flat float32 tensor that shares the memory and keeps it alive."""
        return torch.from_dlpack(driver.array(memory, 0, (memory.nbytes // WORD_BYTES,)))

    def run(self, stream: int, operators: Callable[[], object]) -> None:
        """Run operators in PyTorch's current stream."""
        operators()


tensors = DeviceTensors()


class _Floats:
    """Memory of the GPU, and a tensor over it."""

    def __init__(self, memory: DeviceMemory) -> None:
        self.memory = memory
        self._flat: Any = None

    def flat(self, driver: Driver) -> Any:
        """Return a flat tensor that shares the memory."""
        if self._flat is None:
            with torch.inference_mode(False):  # else only inference could write to it
                self._flat = tensors.over(driver, self.memory)
        return self._flat


_pools: weakref.WeakKeyDictionary[CudaMachine, _Floats] = weakref.WeakKeyDictionary()


class Copies:
    """Copies in PyTorch's stream; made by `copying`.

    A place is `start`, the first of contiguous floats, or `index`, a tensor with the index of each float. The other
    side is a tensor (n, ...), or its rows with the numbers in the tensor `rows`.

    Attributes:
        pool: the pool.
    """

    def __init__(self, machine: CudaMachine, driver: Driver, stream: int) -> None:
        self._driver, self._stream = driver, stream
        known = _pools.get(machine)
        if known is None or known.memory is not machine.pool.memory:
            known = _pools[machine] = _Floats(machine.pool.memory)
        self.pool = known

    def write(self, floats: _Floats, start: int, index: Any, tensor: Any, rows: Any = None) -> None:
        """Copy from a tensor to a place."""
        if index is None and rows is None and tensor.is_contiguous():
            self._copy(floats.memory.address + WORD_BYTES * start, tensor.data_ptr(), tensor.numel())
            return
        flat = floats.flat(self._driver)

        def write() -> None:
            found = tensor if rows is None else tensor.index_select(0, rows)
            if index is None:
                flat[start : start + found.numel()].view(found.shape).copy_(found)
            else:
                flat.index_copy_(0, index, found.reshape(-1))

        self.run(write)

    def read(self, floats: _Floats, start: int, index: Any, tensor: Any, rows: Any = None) -> None:
        """Copy from a place to a tensor."""
        if index is None and rows is None and tensor.is_contiguous():
            self._copy(tensor.data_ptr(), floats.memory.address + WORD_BYTES * start, tensor.numel())
            return
        flat, shape = floats.flat(self._driver), (len(tensor if rows is None else rows), *tensor.shape[1:])

        def read() -> None:
            end = start + torch.Size(shape).numel()
            found = (flat[start:end] if index is None else flat.index_select(0, index)).view(shape)
            if rows is None:
                tensor.copy_(found)
            else:
                tensor.index_copy_(0, rows, found)

        self.run(read)

    def _copy(self, target: int, source: int, floats: int) -> None:
        if floats:
            self._driver.run(self._driver.copying(target, source, WORD_BYTES * floats, self._stream))

    def clear(self, floats: _Floats, start: int, count: int) -> None:
        """Write zeros."""
        if count:
            self._driver.run(self._driver.filling(floats.memory.address + WORD_BYTES * start, 0, count, self._stream))

    def run(self, operators: Callable[[], object]) -> None:
        """Run operators of PyTorch, in order with the copies."""
        tensors.run(self._stream, operators)

    def view(self, start: int, *shape: int) -> Any:
        """Return floats of the pool as a tensor, for operators."""
        return self.pool.flat(self._driver)[start : start + torch.Size(shape).numel()].view(shape)


@contextmanager
def copying(machine: Any, device: Any) -> Iterator[Copies]:
    """Order copies after the launches so far, and before later ones."""
    stream = tensors.stream(device)
    with machine.lent(stream) as driver:
        yield Copies(machine, driver, stream)


def _on(device: Any, index: Any) -> Any:
    """Return an index as a tensor on the GPU; None if it is None or a slice."""
    return torch.from_numpy(index.reshape(-1)).to(device) if isinstance(index, np.ndarray) else None


PutWeights = Callable[[Engine, Copies], None]


class DeviceReplay(Replay):
    """A replay whose inputs and results are tensors on the GPU. Its script stays there.

    Attributes:
        present, absent: numbers of the sequences with and without steps, for the caller; None if all have steps.
    """

    present: Any = None
    absent: Any = None
    _runs = 0
    _latest = 0, 0  # number of the run whose values are in the pool, and number of its launch

    @serialised
    def run(self, values: Sequence[Any], put: PutWeights, out: Sequence[Any], rows: Sequence[Any]) -> int:
        """Begin to compute the wanted rows.

        Args:
            values: values of the inputs, contiguous tensors (rows, width).
            put: callback that copies the weights to the pool.
            out: tensors that receive the wanted rows.
            rows: for each of `out`, the numbers of the rows to write; None for all.

        Returns:
            Number of the run, for `run_backward`.

        Raises:
            CapacityError, HandleError: as for `Handle.forward`.
            KernelError: an earlier launch was stopped.
        """
        engine = self._begin(values, put)
        with copying(engine.machine, values[0].device) as copies:
            for span, index, *target in zip(self._outputs, self._indexes[1], out, rows, strict=True):
                copies.read(copies.pool, span.start, index, *target)
        return self._latest[0]

    @serialised
    def run_backward(
        self,
        number: int,
        values: Sequence[Any],
        put: PutWeights,
        seeds: Sequence[Any],
        rows: Sequence[Any],
        finish: Callable[[Copies, Plan, Distribution, Sequence[Callable[[Any], None]]], None],
    ) -> None:
        """Begin to compute gradients after `run`. If another launch has begun since, compute the values again.

        Args:
            number: result of `run`.
            values, put: the same as for `run`.
            seeds: gradients of the wanted rows; None for zeros.
            rows: for each of `seeds`, the numbers of the rows to use; None for all.
            finish: callback that copies gradients. For each input, it gets a function that copies the input's gradient
                to a tensor.
        """
        engine, device = self._handle._engine, values[0].device
        if self._latest != (number, engine.machine.launches) or engine.plan is not self._plan:
            engine = self._begin(values, put)
        plan = self._plan

        def give(_: Pool) -> None:
            at = plan.seeds
            with copying(engine.machine, device) as copies:
                for span, seed, which in zip(self._outputs, seeds, rows, strict=True):
                    size = span.shape[0] * span.shape[1]
                    if seed is None:
                        copies.clear(copies.pool, at, size)
                    else:
                        copies.write(copies.pool, at, None, seed, which)
                    at += size

        self._launch(engine, give, part=1)
        with copying(engine.machine, device) as copies:
            pairs = zip(self._gradients, self._indexes[2], strict=True)
            read = [lambda t, s=s, i=i: copies.read(copies.pool, s.start, i, t) for s, i in pairs]
            finish(copies, plan, engine.store.distribution, read)

    def _begin(self, values: Sequence[Any], put: PutWeights) -> Engine:
        """Launch the forward with these values."""
        self._handle._check_usable()
        engine, device = self._handle._engine, values[0].device
        engine.wait(running=1)
        if self._planner is None or self._planner is not engine.planner:
            self._make(self._chunks)
            self._find_places()
            engine = self._handle._engine
            self._keep(engine.machine, device)

        def give(_: Pool) -> None:
            with copying(engine.machine, device) as copies:
                put(engine, copies)
                for place, index, value in zip(self._places or (), self._indexes[0], values, strict=True):
                    copies.write(self._words, place.start if index is None else -1, index, value)

        if self._keeps:
            engine.store.park_gradients()
        self._launch(engine, give, part=0)
        self._runs += 1
        self._latest = self._runs, engine.machine.launches
        return engine

    def _launch(self, engine: Engine, give: Callable[[Pool], None], part: int) -> None:
        engine.wait(running=1)  # the machine runs two launches at most
        machine: Any = engine.machine
        entries = self._plan.divisions[part - 1] if part else 0
        engine.launch(self._plan, given=give, part=part, begin=lambda: machine.launch_resident(self._script, entries))

    def _keep(self, machine: Any, device: Any) -> None:
        """Copy script and indexes to the GPU."""
        self._script = machine.keep_script(self._plan.script)
        self._words = _Floats(self._script.memory)
        spans = [s.at for s in self._outputs], [s.at for s in self._gradients]
        self._indexes = [[_on(device, index) for index in group] for group in (self._places or [], *spans)]


class _Seen:
    """A weight that is in the pool, and what shows that it has changed since."""

    def __init__(self, tensor: Any) -> None:
        self._tensor: Any = weakref.ref(tensor)
        self._state = tensor._version, tensor.data_ptr(), _steps[0]

    def is_same(self, tensor: Any) -> bool:
        """Return True if this is the tensor, and it has not changed."""
        return tensor is self._tensor() and self._state == (tensor._version, tensor.data_ptr(), _steps[0])


_steps = [0]  # steps of PyTorch's optimizers: fused ones do not change versions


def _note_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    _steps[0] += 1


register_optimizer_step_post_hook(_note_step)


class DeviceStack(Stack):
    """A stack on a GPU. It copies weights that have changed since its last launch.

    It notices steps of PyTorch's optimizers and writes that change a tensor's version. Weights that are written
    otherwise, through `weight.data`, are noticed after the next such change.

    Raises:
        ModelError: the device is not the first GPU.
    """

    target = "cuda"
    replays = DeviceReplay

    def __init__(self, config: Config) -> None:
        number = torch.device(config.device).index
        if number:
            raise ModelError(
                f"the layer's weights are on {config.device}, and vpps computes on the first GPU that a process sees: "
                f"start the process with CUDA_VISIBLE_DEVICES={number}, and use cuda:0 there"
            )
        super().__init__(config)
        self._seen: list[_Seen] = []
        self._in_pool: tuple[Distribution, int] | None = None  # places and number of the weights in the pool

    # ---- weights

    def _take(self, weights: Sequence[Any]) -> int:
        if len(self._seen) != len(weights) or not all(map(_Seen.is_same, self._seen, weights)):
            self._seen, self._taken = [_Seen(w) for w in weights], self._taken + 1
        return self._taken

    def _put(self, weights: Sequence[Any], engine: Engine, copies: Copies) -> None:
        """Copy the weights to the pool if they are not there."""
        state = engine.store.distribution, self._taken
        if self._in_pool == state:
            return
        for mine in self._cells:
            W, U, *biases = (w.detach() for w in weights[mine.own.start : mine.own.stop])
            _put_matrix(copies, state[0], mine.W, W)
            _put_matrix(copies, state[0], mine.U, U)
            if mine.b is not None:
                _put_biases(copies, state[0], mine, *biases)
        self._in_pool = state

    def _learned(self, mine: _Cells, copies: Copies, plan: Plan, places: Distribution, like: Any) -> list[Any]:
        """Return the gradients of the weights of a cell."""

        def read(p: Parameter, into: Any = None) -> Any:
            if p not in plan.reached and p not in plan.touched:
                return None
            into = like.new_zeros(p.shape) if into is None else into
            if p in plan.touched:
                copies.read(copies.pool, places.places[p].gradient, None, into)
            return into

        found = [read(mine.W), read(mine.U)]
        if mine.b is None:
            return found
        found.append(read(mine.b))
        if mine.a is None:
            return [*found, read(mine.b)]
        more, both = like.new_zeros(mine.b.shape), 2 * mine.size
        read(mine.b, more[:both])
        read(mine.a, more[both:])
        return [*found, more]

    # ---- calls

    def _record(
        self, batch: Batch, values: list[Float32], grads: tuple[bool, ...]
    ) -> tuple[Graph, list[Rows], list[Rows]]:
        return super()._record(batch, [np.zeros(v.shape, np.float32) for v in values], grads)

    def _values(self, batch: Batch) -> list[Any]:
        states = [state[k] for state in batch.states for k in range(self.config.cells)]
        return [batch.x, *states, *batch.masks]

    def _prepared(self, batch: Batch, grads: Grads | None) -> tuple[DeviceReplay, list[Any]]:
        """Return the replay for a batch, and the values of its inputs."""
        values = self._values(batch)
        replay: Any = self._replay(batch, values, self._wanted(batch, grads), grads is not None)
        if not batch.layout.all_present and replay.present is None:
            replay.present = _on(batch.x.device, batch.layout.present)
            replay.absent = _on(batch.x.device, np.flatnonzero(batch.layout.lengths == 0))
        return replay, values

    def _parts(self, results: Sequence[Any], present: Any) -> tuple[list[Any], list[Any]]:
        """Return the pieces of y and the final states, or of their gradients, and the rows of these pieces."""
        y, *states = results
        size, directions, cells = self.config.hidden_size, self.config.directions, self.config.cells
        pieces = [None if y is None else y[:, k * size : (k + 1) * size] for k in range(directions)]
        pieces += [None if state is None else state[k] for state in states for k in range(cells)]
        return pieces, [None] * directions + [present] * (len(pieces) - directions)

    def forward(self, batch: Batch, weights: Sequence[Any], grads: Grads | None) -> tuple[list[Any], Token]:
        config, layout, x = self.config, batch.layout, batch.x
        y, shape = x.new_empty(layout.n, config.hidden_size * config.directions), self._shape(layout)
        if layout.all_present:
            states = [x.new_empty(shape) for _ in range(config.states)]
        else:  # the state after a sequence without steps is the state before
            states = [s.clone() for s in batch.states] or [x.new_zeros(shape) for _ in range(config.states)]
        if not layout.n:
            return [y, *states], Token(0, 0)
        with self.lock:
            taken = self._take(weights)
            replay, values = self._prepared(batch, grads)
            number = replay.run(values, partial(self._put, weights), *self._parts([y, *states], replay.present))
        return [y, *states], Token(taken, number)

    def backward(
        self, batch: Batch, weights: Sequence[Any], grads: Grads, token: Token, seeds: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        cells, layout, x = self.config.cells, batch.layout, batch.x
        gx = x.new_empty(x.shape) if grads.x else None
        gstates = [x.new_zeros(self._shape(layout)) if needed else None for needed in grads.states]
        if not layout.n:
            self._pass_on(layout, gstates, seeds[1:])
            return [gx, *gstates], [None] * (cells * self._cells[0].count)
        of_weights: list[Any] = []
        with self.lock:
            if token.taken != self._taken:
                self._take(weights)
            replay, values = self._prepared(batch, grads)

            def finish(copies: Copies, plan: Plan, places: Distribution, read: Sequence[Callable[[Any], None]]) -> None:
                into = [gx, *(None if g is None else g[k] for g in gstates for k in range(cells))]
                for one, target in zip(read, into, strict=False):
                    if target is not None:
                        one(target)
                if replay.absent is not None:
                    copies.run(lambda: _pass_on(replay.absent, gstates, seeds[1:]))
                for mine in self._cells:
                    of_weights.extend(self._learned(mine, copies, plan, places, x))

            put = partial(self._put, weights)
            replay.run_backward(token.launch, values, put, *self._parts(seeds, replay.present), finish)
        return [gx, *gstates], of_weights

    def _shape(self, layout: Layout) -> tuple[int, int, int]:
        return self.config.cells, layout.batch, self.config.hidden_size


def _pass_on(absent: Any, gstates: Sequence[Any], seeds: Sequence[Any]) -> None:
    """Pass gradients on to the initial states of sequences without steps, which are their final states."""
    for gstate, seed in zip(gstates, seeds, strict=False):
        if gstate is not None and seed is not None:
            gstate.index_copy_(1, absent, seed.index_select(1, absent))


def _put_matrix(copies: Copies, distribution: Distribution, p: Parameter, value: Any) -> None:
    """Copy a matrix to its place, and to that of its transpose. On a GPU, a panel is one row."""
    place, stack = distribution.places[p], distribution.stacks.of.get(p)
    copies.write(copies.pool, place.weights, None, value)
    if place.transposed:
        height, first = (p.shape[0], 0) if stack is None else (stack.shape[0], distribution.first_row(p))
        target = copies.view(place.transposed, p.shape[1], height)[:, first : first + p.shape[0]]
        copies.run(lambda: target.copy_(value.t()))


def _put_biases(copies: Copies, distribution: Distribution, mine: _Cells, b: Any, more: Any) -> None:
    """Copy the sum of PyTorch's biases; a GRU's second bias of n stays apart."""
    assert mine.b is not None
    target = copies.view(distribution.places[mine.b].weights, *mine.b.shape)
    if mine.a is None:
        copies.run(lambda: torch.add(b, more, out=target))
        return
    both = 2 * mine.size
    copies.run(lambda: torch.add(b[:both], more[:both], out=target[:both]))
    copies.run(lambda: target[both:].copy_(b[both:]))
    copies.write(copies.pool, distribution.places[mine.a].weights, None, more[both:])
