"""LSTM, GRU, RNN, LSTMCell and GRUCell with the interface of torch.nn, for batches of any shape."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from vpps.errors import GraphError, ModelError, ShapeError
from vpps.torch import compiled
from vpps.torch.chains import Batch, Config, Grads, RecurrentStack, numbers, stack_for
from vpps.torch.function import dense_seed, first_order_only
from vpps.torch.layouts import Layout, Sequences, equal_layout, sequences


class _Call(NamedTuple):
    """A call of a stack, and the numbers of its tensors: x, initial states, masks, weights."""

    stack: RecurrentStack
    layout: Layout
    n_states: int
    n_masks: int

    def batch(self, tensors: Sequence[Any]) -> Batch:
        """Return the inputs without the weights."""
        x, *others = (t.contiguous().resolve_neg() for t in tensors[: 1 + self.n_states + self.n_masks])
        return Batch(x, self.layout, tuple(others[: self.n_states]), tuple(others[self.n_states :]))

    def weights(self, tensors: Sequence[Any]) -> Sequence[Any]:
        """Return the weights."""
        return tensors[1 + self.n_states + self.n_masks :]


class _StackFunction(torch.autograd.Function):
    """Node for a call of a stack: x, initial states, masks and weights to y and final states."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Any) -> Any:
        x, *states = ctx.needs_input_grad[1 : 2 + call.n_states]
        grads = Grads(x, tuple(states))
        found, token = call.stack.forward(call.batch(tensors), call.weights(tensors), grads)
        ctx.save_for_backward(*tensors)
        ctx.call = call, grads, token
        ctx.set_materialize_grads(False)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *seeds: Any) -> Any:
        call, grads, token = ctx.call
        tensors = ctx.saved_tensors
        given = [None if s is None else dense_seed(s).contiguous() for s in seeds]
        inputs, of_weights = call.stack.backward(call.batch(tensors), call.weights(tensors), grads, token, given)
        found = [*inputs, *[None] * call.n_masks, *of_weights]
        return None, *first_order_only(found, [*tensors, *seeds])


class _Recurrent(torch.nn.Module):
    """Common part of layers and cells: weights of torch.nn's class, computed by a stack."""

    mode: str
    _weight_names: list[str]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._number = next(numbers)

    def _computed(self, x: Any, layout: Any, states: list[Any]) -> list[Any]:
        """Return y (n, width) and the final states (cells, batch, hidden_size).

        Args:
            layout: a Layout, or a TracedLayout in compiled code.
        """
        weights = self._weights()
        dtype = weights[0].dtype
        self._check(x, states, weights[0])
        if dtype != torch.float32 or x.dtype != torch.float32:
            x, *states = (t.float() for t in (x, *states))
            weights = [w.float() for w in weights]
        if torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
        masks = self._masks(layout)
        if torch.compiler.is_compiling():
            config = self._config(_frozen(weights), str(x.device), self._number)
            found = compiled.call(config, layout, x, states, masks, weights)
            return found if dtype == torch.float32 else [t.to(dtype) for t in found]
        tensors = (x, *states, *masks, *weights)
        learns = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        frozen = _frozen(weights) if learns else None
        call = _Call(self._stack_for(x, frozen), layout, len(states), len(masks))
        if learns:
            found = list(_StackFunction.apply(call, *tensors))
        else:
            found = call.stack.forward(call.batch(tensors), weights, None)[0]
        return found if dtype == torch.float32 else [t.to(dtype) for t in found]

    def _weights(self) -> list[Any]:
        """Return the weights in PyTorch's order."""
        try:
            return [self._parameters[name] for name in self._weight_names]
        except KeyError:  # computed weights, such as those of weight_norm
            return [getattr(self, name) for name in self._weight_names]

    def _check(self, x: Any, states: list[Any], weight: Any) -> None:
        """Raise an error unless tensors fit together and can be computed."""
        dtype, device = weight.dtype, weight.device
        for tensor in (x, *states):
            if tensor.device != device or tensor.dtype != dtype:
                self._refuse_mixture(tensor, weight)
        if dtype not in _DTYPES:
            what = type(self).__name__
            raise ModelError(
                f"vpps.torch.{what} computes in float32, not {dtype}: use .float(), or torch.nn.{what} for this type"
            )
        if torch.compiler.is_compiling():
            compiled.refuse_export(type(self).__name__)
            return
        if torch.jit.is_tracing() or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None:
            raise GraphError(
                f"vpps.torch.{type(self).__name__}: torch.jit.trace and make_fx cannot keep a launch of vpps in a "
                "program; use torch.compile"
            )

    def _refuse_mixture(self, tensor: Any, weight: Any) -> None:
        """Raise ModelError unless autocast is on, which mixes types."""
        what = type(self).__name__
        if tensor.device != weight.device:
            raise ModelError(f"vpps.torch.{what}: the weights are on {weight.device}, an input is on {tensor.device}")
        if not (torch.is_autocast_enabled(tensor.device.type) and tensor.dtype in _DTYPES):
            raise ModelError(
                f"vpps.torch.{what}: the weights have dtype {weight.dtype}, an input has {tensor.dtype}: convert one "
                "of them"
            )

    def _masks(self, layout: Layout) -> list[Any]:
        """Return the factors of dropout for the inputs of later layers."""
        return []

    def _config(self, frozen: tuple[int, ...], device: str, number: int) -> Config:
        raise NotImplementedError

    def _stack_for(self, x: Any, frozen: tuple[int, ...] | None) -> RecurrentStack:
        """Return the stack; `frozen` are the weights without gradients, None if gradients are not needed."""
        kept: tuple[Any, RecurrentStack] | None = self.__dict__.get("_stack")
        if kept is not None and kept[0] == x.device and frozen in (None, kept[1].config.frozen):
            stack = kept[1]
            if stack.handle.pid == os.getpid():
                return stack
        if x.device.type not in ("cpu", "cuda"):
            raise ModelError(
                f"vpps.torch.{type(self).__name__}: nothing computes on device {x.device}; use cpu or cuda"
            )
        stack = stack_for(self._config(frozen or (), str(x.device), self._number))
        self.__dict__["_stack"] = x.device, stack
        return stack

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the stack: copies make their own."""
        state = dict(super().__getstate__())
        state.pop("_stack", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._number = next(numbers)


def _frozen(weights: Sequence[Any]) -> tuple[int, ...]:
    """Return the numbers of the weights that need no gradient."""
    return tuple(k for k, w in enumerate(weights) if not w.requires_grad)


_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class _Layers(_Recurrent, torch.nn.RNNBase):
    """Common part of LSTM, GRU and RNN. Dynamo would refuse subclasses of torch.nn.LSTM itself."""

    def __init__(self, mode: str, *args: Any, **options: Any) -> None:
        super().__init__(mode, *args, **options)
        if self.proj_size:
            raise ModelError(
                f"vpps.torch.{type(self).__name__}(proj_size={self.proj_size}): there are no projections; use "
                f"proj_size=0, or torch.nn.LSTM"
            )

    @property
    def _weight_names(self) -> list[str]:  # type: ignore[override]
        return self._flat_weights_names  # type: ignore[no-any-return]

    def flatten_parameters(self) -> None:
        """Do nothing: the layer needs no particular memory for its weights."""

    def _masks(self, layout: Layout) -> list[Any]:
        if not (self.training and self.dropout and self.num_layers > 1):
            return []
        width = self.hidden_size * (1 + self.bidirectional)
        ones = torch.ones(layout.n, width, device=next(self.parameters()).device)
        return [torch.nn.functional.dropout(ones, self.dropout) for _ in range(self.num_layers - 1)]

    def _config(self, frozen: tuple[int, ...], device: str, number: int) -> Config:
        sizes = self.input_size, self.hidden_size, self.num_layers
        return Config(self.mode, *sizes, self.bias, self.bidirectional, frozen, device, number)

    def forward(self, input: Any, hx: Any = None, *, resets: Any = None) -> Any:
        """Return the output of every step, and the final state of every sequence.

        Args:
            input: (steps, batch, input_size), with `batch_first` (batch, steps, input_size); (steps, input_size); a
                PackedSequence; a list of tensors (steps, input_size); or a nested tensor with `layout=torch.jagged`.
            hx: initial state, like torch.nn's; None for zeros.
            resets: torch.bool, True where a new sequence begins: the state before that step is zero. It has the form
                of `input` without its last dimension. In the backward direction, the state is zero after the step
                before.

        Returns:
            The outputs in the form of `input`, and the final state like torch.nn's. A sequence without steps has no
            outputs, and ends in its initial state.

        Raises:
            ShapeError, DtypeError, ModelError: the arguments do not fit.
        """
        what = type(self).__name__
        if torch.compiler.is_compiling():
            found = compiled.traced_sequences(input, hx, resets, self.batch_first, self.input_size, what)
        else:
            found = sequences(input, resets, self.batch_first, self.input_size, what)
        y, *final = self._computed(found.x, found.layout, self._initial(hx, found))
        if found.order is not None:
            final = [s.index_select(1, found.order[1]) for s in final]
        if not found.batched:
            final = [s.squeeze(1) for s in final]
        return found.restored(y), final[0] if len(final) == 1 else tuple(final)

    def _initial(self, hx: Any, given: Sequences) -> list[Any]:
        """Return the initial states in the order of the batch; an empty list for zeros."""
        if hx is None:
            return []
        states = list(hx) if self.mode == "LSTM" else [hx]
        batch = (given.layout.batch,) if given.batched else ()
        shape = (self.num_layers * (1 + self.bidirectional), *batch, self.hidden_size)
        if len(states) != (1 + (self.mode == "LSTM")) or any(getattr(s, "shape", None) != shape for s in states):
            form = f"(h0, c0) of shape {shape} each" if self.mode == "LSTM" else f"h0 of shape {shape}"
            shapes = ", ".join(str(tuple(s.shape)) if isinstance(s, torch.Tensor) else repr(s) for s in states)
            raise ShapeError(f"{type(self).__name__}: the initial state is {form}; got {shapes}")
        if not given.batched:
            states = [s.unsqueeze(1) for s in states]
        if given.order is not None:
            states = [s.index_select(1, given.order[0]) for s in states]
        if given.fresh is not None:  # forward directions begin at the first steps
            forward = torch.arange(shape[0]) % (1 + self.bidirectional) == 0
            drop = (forward[:, None, None] & torch.from_numpy(given.fresh)[:, None]).to(states[0].device)
            states = [s.masked_fill(drop, 0) for s in states]
        return states


class LSTM(_Layers):
    """torch.nn.LSTM for sequences of any length: constructor, call, weights and `state_dict` are the same.

        lstm = vpps.torch.LSTM(64, 128, num_layers=2, bidirectional=True)
        outputs, (h, c) = lstm([first, second, third])  # tensors (steps, 64); or what torch.nn.LSTM takes

    All steps of all layers are one launch. There is no padding: the work depends on the numbers of steps. Its
    parameters are ordinary parameters, so it works with every optimizer, `functional_call`, `copy.deepcopy`,
    DistributedDataParallel and `torch.compile`. On a CPU it has as many threads as PyTorch at its first call, or
    one per core after `vpps.torch.share_cores()`.

    It computes in float32. Weights of other types, and autocast, only change the type of results. `proj_size` is not
    supported. Gradients are differentiable once. The next call notices every write to the weights by an operator of
    PyTorch, and writes of most elements through `weight.data` or NumPy.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__("LSTM", *args, **options)


class GRU(_Layers):
    """torch.nn.GRU for sequences of any length; see `LSTM`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__("GRU", *args, **options)


class RNN(_Layers):
    """torch.nn.RNN for sequences of any length; see `LSTM`.

    Args:
        nonlinearity: "tanh" or "relu".
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh", *args: Any,
        **options: Any,
    ) -> None:  # fmt: skip
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"RNN(nonlinearity={nonlinearity!r}): expected 'tanh' or 'relu'")
        self.nonlinearity = nonlinearity
        super().__init__(f"RNN_{nonlinearity.upper()}", input_size, hidden_size, num_layers, *args, **options)


class _Cell(_Recurrent):
    """Common part of LSTMCell and GRUCell, in front of torch.nn's class."""

    @property
    def _weight_names(self) -> list[str]:  # type: ignore[override]
        return ["weight_ih", "weight_hh", *(["bias_ih", "bias_hh"] if self.bias else [])]

    def _config(self, frozen: tuple[int, ...], device: str, number: int) -> Config:
        return Config(self.mode, self.input_size, self.hidden_size, 1, bool(self.bias), False, frozen, device, number)

    def _stepped(self, x: Any, states: list[Any]) -> list[Any]:
        """Return the next states, each (batch, hidden_size), or (hidden_size,) for an input without a batch."""
        what = type(self).__name__
        if x.dim() not in (1, 2) or x.shape[-1] != self.input_size:
            raise ShapeError(
                f"{what}: expected an input (batch, {self.input_size}) or ({self.input_size},), got {tuple(x.shape)}"
            )
        shape = (*x.shape[:-1], self.hidden_size)
        if len(states) not in (0, 1 + (self.mode == "LSTM")) or any(getattr(s, "shape", None) != shape for s in states):
            form = "(h, c)" if self.mode == "LSTM" else "h"
            shapes = ", ".join(str(tuple(s.shape)) if isinstance(s, torch.Tensor) else repr(s) for s in states)
            raise ShapeError(f"{what}: the state is {form} of shape {shape}; got {shapes}")
        batch = len(x) if x.dim() == 2 else 1
        given = [s.reshape(1, batch, -1) for s in states]
        layout = compiled.one_step(batch) if torch.compiler.is_compiling() else equal_layout(batch, 1, True)
        _, *final = self._computed(x.reshape(batch, -1), layout, given)
        return [s.reshape(shape) for s in final]


class LSTMCell(_Cell, torch.nn.LSTMCell):
    """torch.nn.LSTMCell: one step; see `LSTM`."""

    mode = "LSTM"

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Return (h, c) after a step.

        Args:
            input: (batch, input_size) or (input_size,).
            hx: (h, c) before the step; None for zeros.

        Raises:
            ShapeError, ModelError: the arguments do not fit.
        """
        return tuple(self._stepped(input, [] if hx is None else list(hx)))


class GRUCell(_Cell, torch.nn.GRUCell):
    """torch.nn.GRUCell: one step; see `LSTM`."""

    mode = "GRU"

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Return h after a step.

        Args:
            input: (batch, input_size) or (input_size,).
            hx: h before the step; None for zeros.

        Raises:
            ShapeError, ModelError: the arguments do not fit.
        """
        return self._stepped(input, [] if hx is None else [hx])[0]
