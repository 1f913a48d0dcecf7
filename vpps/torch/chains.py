"""Recurrent layers of torch.nn as vpps models: cells in PyTorch's layout, graphs of sequences, and their launches.

A `RecurrentStack` computes all layers and directions in one launch. It is a pure function of inputs and weights: the
weights belong to the caller, and the stack copies those that have changed since its last launch.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from vpps.errors import NoGradientError
from vpps.graph.functions import concat, split
from vpps.graph.graph import Graph
from vpps.graph.primitives import relu, sigmoid, tanh
from vpps.model.model import Model, Parameter
from vpps.model.optim import SGD
from vpps.record.cell import cell
from vpps.record.rows import Rows
from vpps.session.handle import Handle
from vpps.session.replay import Replay
from vpps.torch.cores import advise, vps_of_layers
from vpps.torch.layouts import Layout
from vpps.values import Float32

_MOST_REPLAYS = 128
_MOST_BYTES = 1 << 27  # of scripts that wait for their layout to come again
_SAMPLE = 64  # weights per tensor that are compared to find writes that do not change the tensor's version


class Config(NamedTuple):
    """Everything that decides a stack's cells. Its fields are those of torch.nn.LSTM.

    Attributes:
        mode: "LSTM", "GRU", "RNN_TANH" or "RNN_RELU".
        frozen: numbers of the weights that need no gradient.
        device: "cpu" or "cuda:0", ...
        number: tells stacks of equal layers apart.
    """

    mode: str
    input_size: int
    hidden_size: int
    num_layers: int
    bias: bool
    bidirectional: bool
    frozen: tuple[int, ...]
    device: str
    number: int

    @property
    def directions(self) -> int:
        """1 or 2."""
        return 1 + self.bidirectional

    @property
    def cells(self) -> int:
        """Number of pairs of a layer and a direction."""
        return self.num_layers * self.directions

    @property
    def states(self) -> int:
        """Number of vectors of a state: 2 for an LSTM (h and c), otherwise 1."""
        return 1 + (self.mode == "LSTM")


# ---- cells

Cells = tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]
"""Functions for a step after a state of zeros, after another step, and after an initial state that is given."""


def _affine(W: Parameter, x: Any, b: Parameter | None) -> Any:
    return W @ x if b is None else W @ x + b


def _lstm(W: Parameter, U: Parameter, b: Parameter | None, a: Parameter | None) -> Cells:
    def first(x: Any) -> Any:
        i, _, g, o = split(_affine(W, x, b), 4)
        c = sigmoid(i) * tanh(g)
        return sigmoid(o) * tanh(c), c

    def step(x: Any, h: Any, c: Any) -> Any:
        i, f, g, o = split(_affine(W, x, b) + U @ h, 4)
        c = sigmoid(i) * tanh(g) + sigmoid(f) * c
        return sigmoid(o) * tanh(c), c

    def enter(x: Any, h0: Any, c0: Any) -> Any:
        return step(x, h0, c0)

    return first, step, enter


def _of_one_state(first: Callable[..., Any], step: Callable[..., Any]) -> Cells:
    def enter(x: Any, h0: Any) -> Any:
        return step(x, h0)

    return first, step, enter


def _gru(W: Parameter, U: Parameter, b: Parameter | None, a: Parameter | None) -> Cells:
    def first(x: Any) -> Any:
        r, z, n = split(_affine(W, x, b), 3)
        n = n if a is None else n + sigmoid(r) * a
        return ((1 - sigmoid(z)) * tanh(n),)

    def step(x: Any, h: Any) -> Any:
        wr, wz, wn = split(_affine(W, x, b), 3)
        ur, uz, un = split(U @ h, 3)
        z = sigmoid(wz + uz)
        n = tanh(wn + sigmoid(wr + ur) * (un if a is None else un + a))
        return (z * h + (1 - z) * n,)

    return _of_one_state(first, step)


def _rnn(function: Callable[[Any], Any]) -> Callable[..., Cells]:
    def cells(W: Parameter, U: Parameter, b: Parameter | None, a: Parameter | None) -> Cells:
        return _of_one_state(
            lambda x: (function(_affine(W, x, b)),), lambda x, h: (function(_affine(W, x, b) + U @ h),)
        )

    return cells


_CELLS: dict[str, tuple[int, Callable[..., Cells]]] = {
    "LSTM": (4, _lstm), "GRU": (3, _gru), "RNN_TANH": (1, _rnn(tanh)), "RNN_RELU": (1, _rnn(relu))
}  # fmt: skip
"""Number of gates, and the function that makes the cells."""

_ENTER = 2  # number of the function for a given state; the others are 0 and 1


class _Cells:
    """Cells and parameters of one layer in one direction: W x + U h + b, with the sum of PyTorch's two biases.

    A GRU's reset gate acts on the second bias of n, `a`, which stays apart.
    """

    def __init__(self, model: Model, config: Config, at: int) -> None:
        gates, made = _CELLS[config.mode]
        size, width = config.hidden_size, config.input_size
        if at >= config.directions:
            width = size * config.directions
        self.count = 4 if config.bias else 2
        self.own = range(self.count * at, self.count * (at + 1))  # numbers of its weights in PyTorch
        learns = [k not in config.frozen for k in self.own]
        self.size, self.is_gru = size, config.mode == "GRU"
        with model.scope(f"cell{at}"):
            self.W = model.parameter("W", (gates * size, width), init="zeros", trainable=learns[0])
            self.U = model.parameter("U", (gates * size, size), init="zeros", trainable=learns[1])
            self.b = self.a = None
            if config.bias:
                self.b = model.parameter("b", (gates * size,), init="zeros", trainable=any(learns[2:]))
                if self.is_gru:
                    self.a = model.parameter("a", (size,), init="zeros", trainable=learns[3])
        self.cells = [cell(function) for function in made(self.W, self.U, self.b, self.a)]

    def assign(self, weights: Sequence[Float32]) -> None:
        """Take PyTorch's weights of this cell."""
        self.W.host, self.U.host = weights[:2]
        changed = [self.W, self.U]
        if self.b is not None:
            b, more = weights[2:]
            if self.a is None:
                self.b.host = b + more
            else:
                self.b.host, self.a.host = b.copy(), more[2 * self.size :]
                self.b.host[: 2 * self.size] += more[: 2 * self.size]
                changed.append(self.a)
            changed.append(self.b)
        for p in changed:
            p.version += 1

    def gradients(self, found: Any) -> list[Float32 | None]:
        """Return the gradients of PyTorch's weights."""
        mine = [found.get(self.W.name), found.get(self.U.name)]
        if self.b is None:
            return mine
        b = found.get(self.b.name)
        if self.a is None or b is None:
            return [*mine, b, b if b is None else b.copy()]
        a = found.get(self.a.name)
        more = np.concatenate([b[: 2 * self.size], np.zeros(self.size, np.float32) if a is None else a])
        return [*mine, b, more]


# ---- launches


class Batch(NamedTuple):
    """The inputs of one call of a stack, as contiguous float32 tensors.

    Attributes:
        x: (n, input_size).
        layout: places of the steps.
        states: initial states, (cells, batch, hidden_size) each; empty for zeros.
        masks: for each layer but the first, factors of its input (n, width); empty without dropout.
    """

    x: Any
    layout: Layout
    states: tuple[Any, ...]
    masks: tuple[Any, ...]


class Grads(NamedTuple):
    """The inputs that need gradients: x, and each initial state (none if they are zeros)."""

    x: bool
    states: tuple[bool, ...]


class Token(NamedTuple):
    """A forward: the number of times that weights had been copied to the model, and the number of the launch, which is
    0 if the results depend on nothing that needs a gradient."""

    taken: int
    launch: int


class _Weight:
    """A weight that has been copied to the model, and what shows that it has changed since."""

    def __init__(self, tensor: Any) -> None:
        self._tensor: Any = weakref.ref(tensor)
        self._version, self._address = None if tensor.is_inference() else tensor._version, tensor.data_ptr()
        self.array: Float32 = tensor.detach().contiguous().numpy()
        flat = tensor.detach().reshape(-1).numpy()  # shares the tensor's memory, if that is contiguous
        self._some = flat[:: max(1, len(flat) // _SAMPLE)]
        self._bits = self._some.tobytes()

    def is_same(self, tensor: Any) -> bool:
        """Return True if this is the tensor, and it has not changed."""
        if tensor is not self._tensor() or self._version is None:  # tensors of inference mode have no version
            return False
        same = tensor._version == self._version and tensor.data_ptr() == self._address
        return bool(same and self._some.tobytes() == self._bits)


class RecurrentStack:
    """All layers and directions of a recurrent network, as one vpps model with one handle."""

    target = "cpu"
    replays: type[Replay] = Replay

    def __init__(self, config: Config) -> None:
        self.config = config
        model = Model(seed=0)
        self._cells = [_Cells(model, config, k) for k in range(config.cells)]
        vps = vps_of_layers() if self.target == "cpu" else None
        self.handle = Handle(model, SGD(lr=0.0), target=self.target, vps=vps)
        advise(self.target, self.handle.vps)
        self.lock = threading.RLock()
        self._weights: list[_Weight] = []  # the weights in the model
        self._taken = 0  # number of times that weights were copied to the model
        self._replays: OrderedDict[Any, Replay] = OrderedDict()
        self._held = 0  # bytes of their scripts

    # ---- weights

    def _take(self, weights: Sequence[Any]) -> int:
        """Copy the weights to the model if they are not there. Returns the number of such copies so far."""
        if len(self._weights) == len(weights) and all(map(_Weight.is_same, self._weights, weights)):
            return self._taken
        found = [_Weight(w) for w in weights]
        for mine in self._cells:
            mine.assign([w.array for w in found[mine.own.start : mine.own.stop]])
        self._weights, self._taken = found, self._taken + 1
        return self._taken

    # ---- graphs

    def _replay(self, batch: Batch, grads: tuple[bool, ...], keeps: bool) -> Replay:
        """Return the replay for a batch's layout."""
        key = batch.layout.key, len(batch.states), len(batch.masks), grads, keeps
        found = self._replays.get(key)
        if found is None:
            graph, inputs, wanted = self._record(batch, grads)
            found = self.replays(self.handle, graph, inputs, wanted, keeps)
            while self._replays and (len(self._replays) >= _MOST_REPLAYS or self._held > _MOST_BYTES):
                self._held -= self._replays.popitem(last=False)[1].nbytes
            self._replays[key] = found
            self._held += found.nbytes
        self._replays.move_to_end(key)
        return found

    def _record(self, batch: Batch, grads: tuple[bool, ...]) -> tuple[Graph, list[Rows], list[Rows]]:
        """Record the graph of a batch, without values. Returns it with its inputs and the rows to compute."""
        config, layout, graph = self.config, batch.layout, Graph()
        shapes = [batch.x.shape, *[s.shape[1:] for s in batch.states for _ in range(config.cells)]]
        shapes += [mask.shape for mask in batch.masks]
        inputs = [graph.rows(np.zeros(shape, np.float32), grad) for shape, grad in zip(shapes, grads, strict=True)]
        x, cells, masks = inputs[0], config.cells, inputs[1 + len(batch.states) * config.cells :]
        last: list[list[Rows]] = []
        directions = [layout.direction(backward) for backward in (False, True)[: config.directions]]
        outputs: list[Rows] = []
        for layer in range(config.num_layers):
            if layer:
                x = outputs[0] if len(outputs) == 1 else concat(outputs)
                x = x * masks[layer - 1] if masks else x
            outputs = []
            for side, direction in enumerate(directions):
                k = layer * config.directions + side
                kind = (direction.before[:, 0] >= 0).view(np.int8)
                given: dict[str, Any] = {"x": x}
                if batch.states:
                    kind[direction.enters] = _ENTER
                    for s, name in enumerate(("h0", "c0")[: config.states]):
                        given[name] = inputs[1 + s * cells + k][layout.numbers]
                states = graph.map(
                    self._cells[k].cells, kind, direction.before, given, levels=direction.levels,
                    state=[config.hidden_size] * config.states,
                )  # fmt: skip
                outputs.append(states[0])
                last.append([state[direction.last] for state in states])
        return graph, inputs, [*outputs, *(of_cell[s] for s in range(config.states) for of_cell in last)]

    def _values(self, batch: Batch) -> list[Any]:
        """Return the addresses of the inputs of the graph."""
        states = [at for state in batch.states for at in self._of_cells(state)]
        return [batch.x.data_ptr(), *states, *(mask.data_ptr() for mask in batch.masks)]

    def _of_cells(self, state: Any) -> Sequence[int]:
        """Return the addresses of the cells' parts of a contiguous tensor (cells, batch, hidden_size)."""
        at, cells = state.data_ptr(), self.config.cells
        return (at,) if cells == 1 else range(at, at + state.nbytes, state.nbytes // cells)

    # ---- calls

    def forward(self, batch: Batch, weights: Sequence[Any], grads: Grads | None) -> tuple[list[Any], Token]:
        """Return y (n, directions * hidden_size) and the final states (cells, batch, hidden_size), and a token for
        `backward`.

        Args:
            weights: PyTorch's weights, in the order of `_flat_weights`.
            grads: the inputs that need gradients; None if nothing does.
        """
        config, layout = self.config, batch.layout
        y = torch.empty(layout.n, config.hidden_size * config.directions)
        shape = config.cells, layout.batch, config.hidden_size
        if layout.all_present:
            states = [torch.empty(shape) for _ in range(config.states)]
        else:  # the state after a sequence without steps is the state before
            states = [s.clone() for s in batch.states] or [torch.zeros(shape) for _ in range(config.states)]
        if not layout.n:
            return [y, *states], Token(0, 0)
        with self.lock:
            taken = self._take(weights)
            values = self._values(batch)
            replay = self._replay(batch, self._wanted(batch, grads), grads is not None)
            out = self._pieces(layout, [y, *states])
            try:
                launch = replay.forward(values, out)
            except NoGradientError:  # such as weight_hh, with sequences of one step
                launch, unwanted = 0, self._wanted(batch, None)
                self._replay(batch, unwanted, False).forward(values, out)
        if not layout.all_present:
            self._put_back(layout, states, out)
        return [y, *states], Token(taken, launch)

    def backward(
        self, batch: Batch, weights: Sequence[Any], grads: Grads, token: Token, seeds: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Return the gradients of x and the initial states, and those of the weights; None if not needed.

        Args:
            token: the token that `forward` returned.
            seeds: gradients of the results of `forward`; None for zeros.
        """
        config, layout = self.config, batch.layout
        gx = torch.empty(batch.x.shape) if grads.x else None
        shape = config.cells, layout.batch, config.hidden_size
        gstates = [torch.zeros(shape) if needed else None for needed in grads.states]
        if not token.launch:
            self._pass_on(layout, gstates, seeds[1:])
            return [gx, *gstates], self._of_weights(weights, {})
        with self.lock:
            if token.taken != self._taken:
                self._take(weights)
            values = self._values(batch)
            replay = self._replay(batch, self._wanted(batch, grads), True)
            into = [at for g in gstates for at in ([None] * config.cells if g is None else self._of_cells(g))]
            out = [None if gx is None else gx.data_ptr(), *into, *(None for _ in batch.masks)]
            found = replay.backward(token.launch, values, self._pieces(layout, seeds), out)
        self._pass_on(layout, gstates, seeds[1:])
        return [gx, *gstates], self._of_weights(weights, found)

    def _of_weights(self, weights: Sequence[Any], found: Any) -> list[Any]:
        """Return the gradients of PyTorch's weights: zeros, like torch.nn's, for those that had no influence."""
        gradients = [g for mine in self._cells for g in mine.gradients(found)]
        given = enumerate(zip(weights, gradients, strict=True))
        return [torch.from_numpy(g) if g is not None else _zeros(w, k in self.config.frozen) for k, (w, g) in given]

    @staticmethod
    def _pass_on(layout: Layout, gstates: Sequence[Any], seeds: Sequence[Any]) -> None:
        """Pass gradients on to the initial states of sequences without steps, which are their final states."""
        if layout.all_present:
            return
        empty = np.flatnonzero(layout.lengths == 0)
        for gstate, seed in zip(gstates, seeds, strict=False):
            if gstate is not None and seed is not None:
                gstate[:, empty] = seed[:, empty]

    def _pieces(self, layout: Layout, results: Sequence[Any]) -> list[Any]:
        """Return the pieces of y and the final states, or of their gradients, as addresses or arrays, in the order of
        the rows to compute."""
        y, *states = results
        directions, cells, size = self.config.directions, self.config.cells, self.config.hidden_size
        if y is None:
            pieces: list[Any] = [None] * directions
        elif directions == 1:
            pieces = [y.data_ptr()]
        else:
            pieces = [y.numpy()[:, :size], y.numpy()[:, size:]]
        for state in states:
            if state is None:
                pieces += [None] * cells
            elif layout.all_present:
                pieces += self._of_cells(state)
            else:
                pieces += [piece[layout.present] for piece in state.numpy()]
        return pieces

    def _put_back(self, layout: Layout, states: Sequence[Any], pieces: Sequence[Any]) -> None:
        """Write the final states of the sequences with steps."""
        found = iter(pieces[self.config.directions :])
        for state in states:
            for k in range(self.config.cells):
                state.numpy()[k][layout.present] = next(found)

    def _wanted(self, batch: Batch, grads: Grads | None) -> tuple[bool, ...]:
        """Return whether each input of the graph needs a gradient."""
        if grads is None:
            return (False,) * (1 + len(batch.states) * self.config.cells + len(batch.masks))
        of_states = [needed for needed in grads.states for _ in range(self.config.cells)]
        return (grads.x, *of_states, *(False for _ in batch.masks))


def _zeros(weight: Any, is_frozen: bool) -> Any:
    return None if is_frozen else weight.new_zeros(weight.shape)


_stacks: weakref.WeakValueDictionary[Config, RecurrentStack] = weakref.WeakValueDictionary()
_making = threading.Lock()
numbers = itertools.count()
kinds: dict[str, type[RecurrentStack]] = {"cpu": RecurrentStack}  # by type of device


def stack_for(config: Config) -> RecurrentStack:
    """Return the stack of a configuration, which lives as long as somebody holds it."""
    with _making:
        found = _stacks.get(config)
        if found is None or found.handle.pid != os.getpid():  # a forked child has none of its threads
            found = _stacks[config] = kinds[config.device.partition(":")[0]](config)
        return found
