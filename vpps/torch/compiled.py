"""The recurrent layers under torch.compile: a custom operator, so that compiled code has no graph breaks.

Outside of compiled code an autograd.Function does the same work with half the overhead. The operator is pure. Its last
result is a token: if nothing was launched since the forward, the backward need not compute it again.
"""

from __future__ import annotations

import ast
import os
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from vpps.errors import DtypeError, GraphError, ShapeError
from vpps.torch.chains import Batch, Config, Grads, RecurrentStack, Token, stack_for
from vpps.torch.layouts import Layout, Sequences, equal_layout, packed_layout

_STEPS_FIRST, _BATCH_FIRST, _PACKED, _LENGTHS = range(4)
_MOST_STACKS = 16

_stacks: OrderedDict[str, RecurrentStack] = OrderedDict()  # keeps the stacks of compiled code alive


class TracedLayout(NamedTuple):
    """A layout that the operator makes when it runs.

    Attributes:
        form: _STEPS_FIRST, ...
        n, batch: number of steps in all, and of sequences.
        sizes: batch sizes of a PackedSequence, or the sequences' lengths; None if all have equal lengths.
        cuts: see `Layout`.
    """

    form: int
    n: int
    batch: int
    sizes: Tensor | None
    cuts: Tensor | None


def traced_sequences(given: Any, hx: Any, resets: Any, batch_first: bool, width: int, what: str) -> Sequences:
    """Return the sequences that a layer was given, with a TracedLayout; the counterpart of `layouts.sequences`."""
    order, batched = None, True
    if isinstance(given, PackedSequence):
        x, sizes, form = given.data, given.batch_sizes, _PACKED
        indices, back = given.sorted_indices, given.unsorted_indices
        state = hx[0] if isinstance(hx, list | tuple) and hx else hx
        if indices is not None:
            batch = len(indices)
        else:  # sizes has no values while it is traced; `_batch` compares
            batch = state.shape[1] if isinstance(state, Tensor) and state.dim() == 3 else int(sizes[0])
        order = None if indices is None else (indices, back)
        cuts = resets.data if isinstance(resets, PackedSequence) else resets

        def restored(y: Tensor) -> Any:
            return PackedSequence(y, sizes, indices, back)

    elif isinstance(given, list | tuple):
        lengths = [len(x) for x in given]
        x, sizes, form, batch = torch.cat(list(given)), torch.tensor(lengths), _LENGTHS, len(given)
        cuts = None if resets is None else torch.cat(list(resets))

        def restored(y: Tensor) -> Any:
            return list(y.split(lengths))

    elif isinstance(given, Tensor) and not given.is_nested:
        batched = given.dim() == 3
        if given.dim() not in (2, 3):
            raise ShapeError(f"{what}: expected an input of 2 or 3 dimensions; got shape {tuple(given.shape)}")
        shape = given.shape[:-1]
        form = _BATCH_FIRST if batch_first or not batched else _STEPS_FIRST
        batch = (shape[0] if batch_first else shape[1]) if batched else 1
        x, sizes, cuts = given.reshape(-1, given.shape[-1]), None, resets

        def restored(y: Tensor) -> Any:
            return y.reshape(*shape, -1)

    else:
        raise DtypeError(f"{what}: compiled code takes a tensor, PackedSequence or list of tensors, not {type(given)}")
    if x.dim() != 2 or x.shape[1] != width:
        raise ShapeError(f"{what}: each step has {x.shape[-1]} numbers; input_size is {width}")
    if cuts is not None and (cuts.dtype != torch.bool or cuts.numel() != x.shape[0]):
        raise ShapeError(f"{what}: resets: expected a tensor of torch.bool with an element per step")
    layout = TracedLayout(form, x.shape[0], batch, sizes, None if cuts is None else cuts.reshape(-1))
    return Sequences(x, layout, restored, order, batched)  # type: ignore[arg-type]


def one_step(batch: int) -> TracedLayout:
    """Return the layout of one step of each sequence."""
    return TracedLayout(_BATCH_FIRST, batch, batch, None, None)


def call(config: Config, layout: TracedLayout, x: Any, states: list[Any], masks: list[Any], weights: list[Any]) -> Any:
    """Return y and the final states."""
    learns = torch.is_grad_enabled() and any(t.requires_grad for t in (x, *states, *weights))
    found = torch.ops.vpps.recurrent(
        repr(tuple(config)), x, states, masks, weights, layout.form, layout.batch, layout.sizes, layout.cuts, learns
    )
    return found[:-1]


def _config(text: str) -> Config:
    """Return the configuration in an operator's argument."""
    return Config(*ast.literal_eval(text))


def _stack(config: str) -> RecurrentStack:
    found = _stacks.pop(config, None)
    if found is None or found.handle.pid != os.getpid():
        found = stack_for(_config(config))
    _stacks[config] = found
    if len(_stacks) > _MOST_STACKS:
        _stacks.popitem(last=False)
    return found


def _batch(
    x: Tensor, states: Sequence[Tensor], masks: Sequence[Tensor], form: int, batch: int, sizes: Any, cuts: Any
) -> Batch:
    layout: Layout
    if form == _PACKED:
        layout = packed_layout(sizes.numpy())
        if layout.batch != batch:
            raise ShapeError(f"the initial state is for {batch} sequences; give one for each of the {layout.batch}")
    elif form == _LENGTHS:
        layout = Layout(sizes.numpy())
    else:
        layout = equal_layout(batch, len(x) // batch if batch else 0, form == _BATCH_FIRST)
    layout = layout.with_cuts(None if cuts is None else cuts.cpu().numpy())
    return Batch(x.contiguous(), layout, tuple(s.contiguous() for s in states), tuple(masks))


@torch.library.custom_op("vpps::recurrent", mutates_args=())
def _recurrent(
    config: str, x: Tensor, states: list[Tensor], masks: list[Tensor], weights: list[Tensor], form: int, batch: int,
    sizes: Tensor | None, cuts: Tensor | None, learns: bool,
) -> list[Tensor]:  # fmt: skip
    stack = _stack(config)
    grads = Grads(True, (True,) * len(states)) if learns else None
    found, token = stack.forward(_batch(x, states, masks, form, batch, sizes, cuts), weights, grads)
    return [*found, torch.tensor(token)]


@_recurrent.register_fake
def _(
    config: str, x: Tensor, states: list[Tensor], masks: list[Tensor], weights: list[Tensor], form: int, batch: int,
    sizes: Tensor | None, cuts: Tensor | None, learns: bool,
) -> list[Tensor]:  # fmt: skip
    c = _config(config)
    final = [x.new_empty(c.cells, batch, c.hidden_size) for _ in range(c.states)]
    return [x.new_empty(x.shape[0], c.directions * c.hidden_size), *final, torch.empty(2, dtype=torch.int64)]


@torch.library.custom_op("vpps::recurrent_backward", mutates_args=())
def _recurrent_backward(
    config: str, x: Tensor, states: list[Tensor], masks: list[Tensor], weights: list[Tensor], form: int, batch: int,
    sizes: Tensor | None, cuts: Tensor | None, token: Tensor, seeds: list[Tensor],
) -> list[Tensor]:  # fmt: skip
    grads = Grads(True, (True,) * len(states))
    given = _batch(x, states, masks, form, batch, sizes, cuts)
    seeds = [s.contiguous() for s in seeds]
    inputs, found = _stack(config).backward(given, weights, grads, Token(*token.tolist()), seeds)
    return [*inputs, *(torch.zeros_like(w) if g is None else g for g, w in zip(found, weights, strict=True))]


@_recurrent_backward.register_fake
def _(
    config: str, x: Tensor, states: list[Tensor], masks: list[Tensor], weights: list[Tensor], form: int, batch: int,
    sizes: Tensor | None, cuts: Tensor | None, token: Tensor, seeds: list[Tensor],
) -> list[Tensor]:  # fmt: skip
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, *states, *weights)]


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    config, x, states, masks, weights, *layout, _ = inputs
    ctx.save_for_backward(x, *states, *masks, *weights, *layout[2:], output[-1])
    ctx.call = config, len(states), len(masks), layout[:2]
    ctx.shapes = [tuple(t.shape) for t in output[:-1]]


def _differentiate(ctx: Any, seeds: Sequence[Any]) -> Any:
    config, n_states, n_masks, (form, batch) = ctx.call
    x, *rest, sizes, cuts, token = ctx.saved_tensors
    states, masks, weights = rest[:n_states], rest[n_states : n_states + n_masks], rest[n_states + n_masks :]
    given = [x.new_zeros(shape) if s is None else s for s, shape in zip(seeds[:-1], ctx.shapes, strict=True)]
    found = torch.ops.vpps.recurrent_backward(config, x, states, masks, weights, form, batch, sizes, cuts, token, given)
    of_states, of_weights = found[1 : 1 + n_states], found[1 + n_states :]
    return None, found[0], of_states, [None] * n_masks, of_weights, None, None, None, None, None


_recurrent.register_autograd(_differentiate, setup_context=_keep)


def refuse_export(what: str) -> None:
    """Raise GraphError if torch.export is tracing."""
    exporting = getattr(torch.compiler, "is_exporting", None)  # from PyTorch 2.7 on
    if exporting is not None and exporting():
        raise GraphError(
            f"vpps.torch.{what}: torch.export cannot keep a launch of vpps in a program; load the state_dict into "
            f"torch.nn.{what} to export it"
        )
