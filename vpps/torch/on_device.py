"""Recurrent layers on a GPU: all copies are from device to device, and a call returns before the GPU has computed.

A later call, or `handle.close()`, reports a launch that fails.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from vpps.engine.engine import Engine
from vpps.errors import ModelError, NoGradientError
from vpps.model.model import Parameter
from vpps.placement.distribution import Distribution, Pool
from vpps.planner.plan import Plan
from vpps.session.replay import Replay
from vpps.torch.chains import Batch, Config, Grads, RecurrentStack, Token, _Cells, _zeros, kinds
from vpps.torch.copies import Copies, FloatPlace, Floats, Part, copying, numbers_of, put_weights
from vpps.turns import serialised

PutWeights = Callable[[Engine, Copies], None]
_runs = itertools.count(1)  # numbers of runs, of all replays: another replay can take the place of one


class DeviceReplay(Replay):
    """A replay whose inputs and results are tensors on the GPU. Its script stays there.

    Attributes:
        present, absent: numbers of the sequences with and without steps, for the caller; None if all have steps.
    """

    present: Any = None
    absent: Any = None
    _latest = 0, 0  # number of the run whose values are in the pool, and number of its launch

    @serialised
    def run(self, values: Sequence[Any], put: PutWeights, out: Sequence[Part]) -> int:
        """Begin to compute the wanted rows.

        Args:
            values: values of the inputs, contiguous tensors (rows, width).
            put: callback that copies the weights to the pool.
            out: tensors that receive the wanted rows.

        Returns:
            Number of the run, for `run_backward`.

        Raises:
            CapacityError, HandleError: as for `Handle.forward`.
            KernelError: an earlier launch was stopped.
        """
        engine = self._begin(values, put)
        with copying(engine.machine, values[0].device) as copies:
            for place, part in zip(self._outputs_at, out, strict=True):
                copies.read(place, part)
        return self._latest[0]

    @serialised
    def run_backward(
        self, number: int, values: Sequence[Any], put: PutWeights, seeds: Sequence[Part | None],
        out: Sequence[Any], finish: Callable[[Copies, Plan], None],
    ) -> None:  # fmt: skip
        """Begin to compute gradients after `run`. If another launch has begun since, compute the values again.

        Args:
            number: result of `run`.
            values, put: the same as for `run`.
            seeds: gradients of the wanted rows; None for zeros.
            out: tensors that receive the inputs' gradients; None if a gradient is not needed.
            finish: callback that copies the gradients of parameters.
        """
        engine, device = self._handle._engine, values[0].device
        if self._latest != (number, engine.machine.launches) or engine.plan is not self._plan:
            engine = self._begin(values, put)

        def give(_: Pool) -> None:
            at = self._plan.seeds
            with copying(engine.machine, device) as copies:
                for span, seed in zip(self._outputs, seeds, strict=True):
                    if seed is None:
                        copies.clear(at, math.prod(span.shape))
                    else:
                        copies.write(FloatPlace(at), seed)
                    at += math.prod(span.shape)

        self._launch(engine, give, part=1)
        with copying(engine.machine, device) as copies:
            for place, tensor in zip(self._gradients_at, out, strict=True):
                if tensor is not None:
                    copies.read(place, Part(tensor))
            finish(copies, self._plan)

    def _begin(self, values: Sequence[Any], put: PutWeights) -> Engine:
        """Launch the forward with these values."""
        self._handle._check_usable()
        engine, device = self._handle._engine, values[0].device
        engine.wait(running=1)
        if self._planner is None or self._planner is not engine.planner:
            self._make(self._chunks)
            self._find_places()
            engine = self._handle._engine
            machine: Any = engine.machine
            self._script = machine.keep_script(self._plan.script)
            self._words = Floats(self._script.memory)
            self._inputs_at = [FloatPlace.of(key, device) for key, _ in self._places or ()]
            self._rows_read = [numbers_of(rows, device) for _, rows in self._places or ()]
            self._outputs_at = [FloatPlace.of(span.key, device) for span in self._outputs]
            self._gradients_at = [FloatPlace.of(span.key, device) for span in self._gradients]

        def give(_: Pool) -> None:
            with copying(engine.machine, device) as copies:
                put(engine, copies)
                for place, value, rows in zip(self._inputs_at, values, self._rows_read, strict=True):
                    copies.write(place, Part(value, rows), self._words)

        if self._keeps:
            engine.store.park_gradients()
        self._launch(engine, give, part=0)
        self._latest = next(_runs), engine.machine.launches
        return engine

    def _launch(self, engine: Engine, give: Callable[[Pool], None], part: int) -> None:
        engine.wait(running=1)  # the machine runs two launches at most
        machine: Any = engine.machine
        entries = self._plan.divisions[part - 1] if part else 0
        engine.launch(self._plan, given=give, part=part, begin=lambda: machine.launch_resident(self._script, entries))


_steps = [0]  # steps of PyTorch's optimizers; fused ones do not change the versions of weights


def _note_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    _steps[0] += 1


register_optimizer_step_post_hook(_note_step)


class DeviceRecurrentStack(RecurrentStack):
    """A stack on a GPU. It copies weights that have changed since its last launch.

    It notices steps of PyTorch's optimizers, and writes that change a tensor's version. It notices other writes, such
    as those through `weight.data`, together with the next of these.

    Raises:
        ModelError: the device is not the first GPU.
    """

    target = "cuda"
    replays = DeviceReplay

    def __init__(self, config: Config) -> None:
        if number := torch.device(config.device).index:
            raise ModelError(
                f"the weights are on {config.device}, and vpps.torch's layers compute on the first GPU that the "
                f"process sees: start it with CUDA_VISIBLE_DEVICES={number} and use cuda:0"
            )
        super().__init__(config)
        self._refs: list[Any] = []  # the weights that were taken last
        self._states: list[tuple[object, int, int]] = []  # version and address of each, and optimizer steps until then
        self._in_pool: tuple[Distribution, int] | None = None  # places and number of the weights in the pool

    # ---- weights

    def _take(self, weights: Sequence[Any]) -> int:
        versions = [object() if w.is_inference() else w._version for w in weights]  # those of inference have none
        states = [(version, w.data_ptr(), _steps[0]) for version, w in zip(versions, weights, strict=True)]
        if states != self._states or any(ref() is not w for ref, w in zip(self._refs, weights, strict=True)):
            self._refs, self._states, self._taken = [weakref.ref(w) for w in weights], states, self._taken + 1
        return self._taken

    def _put(self, weights: Sequence[Any], engine: Engine, copies: Copies) -> None:
        """Copy the weights to the pool if they are not there."""
        state = engine.store.distribution, self._taken
        if self._in_pool == state:
            return
        for mine in self._cells:
            W, U, *biases = (w.detach() for w in weights[mine.own.start : mine.own.stop])
            put_weights(copies, state[0], mine.W, W)
            put_weights(copies, state[0], mine.U, U)
            if mine.b is not None:
                _put_biases(copies, state[0], mine, *biases)
        self._in_pool = state

    def _learned(self, mine: _Cells, copies: Copies, plan: Plan, like: Any) -> list[Any]:
        """Return the gradients of the weights of a cell."""
        places = self.handle._store.distribution.places

        def read(p: Parameter, into: Any = None) -> Any:
            if p not in plan.reached and p not in plan.touched:
                return None
            into = like.new_zeros(p.shape) if into is None else into
            if p in plan.touched:
                copies.read(FloatPlace(places[p].gradient), Part(into))
            return into

        found = [read(mine.W), read(mine.U)]
        if mine.b is None:
            return found
        if mine.a is None:
            return [*found, read(mine.b), read(mine.b)]
        more, both = like.new_zeros(mine.b.shape), 2 * mine.size
        read(mine.b, more[:both])
        read(mine.a, more[both:])
        return [*found, read(mine.b), more]

    # ---- calls

    def _values(self, batch: Batch) -> list[Any]:
        return [batch.x, *(part for state in batch.states for part in state), *batch.masks]

    def _prepared(self, batch: Batch, grads: Grads | None) -> tuple[DeviceReplay, list[Any]]:
        """Return the replay for a batch, and the values of its inputs."""
        values, layout = self._values(batch), batch.layout
        replay: Any = self._replay(batch, self._wanted(batch, grads), grads is not None)
        if not layout.all_present and replay.present is None:
            has_steps = layout.lengths > 0
            replay.present, replay.absent = (numbers_of(mask, batch.x.device) for mask in (has_steps, ~has_steps))
        return replay, values

    def _parts(self, results: Sequence[Any], present: Any) -> list[Any]:
        """Return the parts of y and the final states, or of their gradients, in the order of the rows to compute."""
        y, *states = results
        cells, size = range(self.config.cells), self.config.hidden_size
        columns = [slice(k * size, (k + 1) * size) for k in range(self.config.directions)]
        parts = [None if y is None else Part(y[:, own]) for own in columns]
        return parts + [None if state is None else Part(state[k], present) for state in states for k in cells]

    def forward(self, batch: Batch, weights: Sequence[Any], grads: Grads | None) -> tuple[list[Any], Token]:
        """Implement `RecurrentStack.forward`. The results are not yet computed, but PyTorch's stream waits for them."""
        config, layout, x = self.config, batch.layout, batch.x
        y = x.new_empty(layout.n, config.hidden_size * config.directions)
        shape = config.cells, layout.batch, config.hidden_size
        # The state after a sequence without steps is the state before.
        clones = [] if layout.all_present else [s.clone() for s in batch.states]
        states = clones or [x.new_zeros(shape) for _ in range(config.states)]
        if not layout.n:
            return [y, *states], Token(0, 0)
        with self.lock:
            taken = self._take(weights)
            replay, values = self._prepared(batch, grads)
            put, out = partial(self._put, weights), self._parts([y, *states], replay.present)
            try:
                number = replay.run(values, put, out)
            except NoGradientError:
                number, (replay, values) = 0, self._prepared(batch, None)
                replay.run(values, put, out)
        return [y, *states], Token(taken, number)

    def backward(
        self, batch: Batch, weights: Sequence[Any], grads: Grads, token: Token, seeds: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Implement `RecurrentStack.backward`, like `forward`."""
        cells, layout, x = self.config.cells, batch.layout, batch.x
        gx = x.new_empty(x.shape) if grads.x else None
        shape = cells, layout.batch, self.config.hidden_size
        gstates = [x.new_zeros(shape) if needed else None for needed in grads.states]
        if not token.launch:
            self._pass_on(layout, gstates, seeds[1:])
            return [gx, *gstates], self._of_weights(weights, {})
        learned: list[Any] = []

        def finish(copies: Copies, plan: Plan) -> None:
            if replay.absent is not None:
                copies.run(partial(_pass_on, replay.absent, gstates, seeds[1:]))
            for mine in self._cells:
                learned.extend(self._learned(mine, copies, plan, x))

        with self.lock:
            if token.taken != self._taken:
                self._take(weights)
            replay, values = self._prepared(batch, grads)
            into = [part for g in gstates for part in ([None] * cells if g is None else g)]
            out = [gx, *into, *(None for _ in batch.masks)]
            put, given = partial(self._put, weights), self._parts(seeds, replay.present)
            replay.run_backward(token.launch, values, put, given, out, finish)
        pairs = enumerate(zip(weights, learned, strict=True))
        return [gx, *gstates], [_zeros(w, k in self.config.frozen) if g is None else g for k, (w, g) in pairs]


kinds["cuda"] = DeviceRecurrentStack


def _pass_on(absent: Any, gstates: Sequence[Any], seeds: Sequence[Any]) -> None:
    """Pass gradients on to the initial states of sequences without steps, which are their final states."""
    for gstate, seed in zip(gstates, seeds, strict=False):
        if gstate is not None and seed is not None:
            gstate.index_copy_(1, absent, seed.index_select(1, absent))


def _put_biases(copies: Copies, distribution: Distribution, mine: _Cells, b: Any, more: Any) -> None:
    """Copy the sum of PyTorch's biases; a GRU's second bias of n stays apart."""
    assert mine.b is not None
    target = copies.view(distribution.places[mine.b].weights, *mine.b.shape)
    if mine.a is None:
        copies.run(lambda: torch.add(b, more, out=target))
        return
    both = 2 * mine.size
    copies.run(lambda: torch.add(b[:both], more[:both], out=target[:both]))
    copies.write(FloatPlace(distribution.places[mine.b].weights + both), Part(b[both:]))
    copies.write(FloatPlace(distribution.places[mine.a].weights), Part(more[both:]))
