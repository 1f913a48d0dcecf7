"""The programs that `ragged.py` compares. Import it after threads and cores are set: it imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_sequence

import vpps
import vpps.torch

Forward = Callable[[Any, Tensor, Tensor], Tensor]
"""Returns the outputs, given a layer, inputs and resets, all (time, batch, ...)."""


class Data(NamedTuple):
    """A mini-batch, one sequence after the other: the length of each, and for each token True if the state before it is
    zero, its input, and the gradient of its output."""

    lengths: list[int]
    resets: Tensor
    x: Tensor
    seeds: Tensor


class Step(NamedTuple):
    """A training step on one mini-batch. `run` returns outputs, gradients of inputs, and gradients of weights, by name;
    `by_token` sorts the first two by token."""

    run: Callable[[], list[Any]]
    by_token: Callable[[list[Any]], list[Tensor]]


def step(layer: nn.Module, x: Sequence[Tensor], seeds: Tensor, rows: Tensor, outputs: Callable[[], Tensor]) -> Step:
    """Return a layer's step; `rows` has the row of each token, in the inputs `x` and in the outputs (rows, hidden)."""
    leaves = [*x, *layer.parameters()]

    def run() -> list[Any]:
        for leaf in leaves:
            leaf.grad = None
        y = outputs()
        (y * seeds).sum().backward()
        return [y, *(leaf.grad for leaf in leaves)]

    def by_token(results: list[Any]) -> list[Tensor]:
        (y, *dx), of_weights = results[: 1 + len(x)], results[1 + len(x) :]
        return [y.detach()[rows], torch.cat([part.flatten(0, -2) for part in dx])[rows], *of_weights]

    return Step(run, by_token)


def padded(forward: Forward, layer: nn.Module, data: Data) -> Step:
    """Lay tokens out as (time, batch, ...); gradients of padding's outputs are zero, as with a mask in the loss."""
    n = len(data.x)
    rows = pad_sequence(torch.arange(n).split(data.lengths), padding_value=n).flatten().argsort()[:n]
    x, seeds, resets = (pad_sequence(values.split(data.lengths)) for values in (data.x, data.seeds, data.resets))
    x.requires_grad_()
    return step(layer, [x], seeds.flatten(0, 1), rows, lambda: forward(layer, x, resets).flatten(0, 1))


def packed(layer: nn.Module, data: Data) -> Step:
    """Use a PackedSequence."""
    tokens, sizes = pack(data.resets)
    x = data.x[tokens].requires_grad_()
    return step(layer, [x], data.seeds[tokens], tokens.argsort(), lambda: layer(PackedSequence(x, sizes))[0].data)


def as_new(layer: nn.Module, data: Data) -> Step:
    """Use a PackedSequence, and forget its layout before each step."""
    known = packed(layer, data)

    def run() -> list[Any]:
        if kept := layer.__dict__.get("_stack"):
            kept[1]._replays.clear()
        return known.run()

    return Step(run, known.by_token)


def listed(layer: nn.Module, data: Data) -> Step:
    """Use a list of tensors, one per sequence."""
    x = [part.clone().requires_grad_() for part in data.x.split(data.lengths)]
    return step(layer, x, data.seeds, torch.arange(len(data.x)), lambda: torch.cat(layer(x)[0]))


def split(layer: nn.Module, data: Data, before: bool) -> Step:
    """Run the pieces between resets as one PackedSequence, and gather the outputs. before: find the pieces now."""
    found = pieces(pad_sequence(data.resets.split(data.lengths))) if before else None

    def forward(layer: nn.Module, x: Tensor, resets: Tensor) -> Tensor:
        rows, sizes, back = found or pieces(resets)
        y: Tensor = layer(PackedSequence(x.flatten(0, 1)[rows], sizes))[0].data
        return y[back].view(*resets.shape, -1)

    return padded(forward, layer, data)


def pieces(resets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows of (time, batch) in packed order, the sizes of a PackedSequence, and the way back."""
    tokens, sizes = pack(resets.T.flatten())
    time, n = resets.shape
    rows = tokens % time * n + tokens // time
    return rows, sizes, torch.empty_like(rows).index_put_((rows,), torch.arange(len(rows)))


def pack(resets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tokens in the order of a PackedSequence whose sequences begin at resets, and its sizes."""
    starts = resets.nonzero()[:, 0]
    lengths, order = torch.diff(starts, append=starts.new_tensor([len(resets)])).sort(descending=True)
    steps = torch.arange(int(lengths[0]))[:, None]
    present = steps < lengths
    return (starts[order] + steps)[present], present.sum(1)


def loop(cell: nn.Module, x: Tensor, resets: Tensor) -> Tensor:
    """Call a cell at every step, and multiply the state by a mask."""
    h = c = torch.zeros_like(x[0])
    outputs = []
    for frame, keep in zip(x, (~resets).to(x.dtype)[..., None], strict=True):
        h, c = cell(frame, (h * keep, c * keep))
        outputs.append(h)
    return torch.stack(outputs)


def by_handle(weights: Mapping[str, Tensor], threads: int) -> Callable[[Data], Step]:
    """Return the way to prepare a step of the same LSTM as a vpps cell, run by a handle."""
    model = vpps.Model(seed=1)
    W, U, b, bU = (model.parameter(name, tuple(w.shape), init=w.numpy()) for name, w in weights.items())
    handle = vpps.Handle(model, target="cpu", vps=threads)

    @vpps.cell
    def cell(x, h, c):
        i, f, g, o = vpps.split(W @ x + b + U @ h + bU, 4)
        c = vpps.sigmoid(f) * c + vpps.sigmoid(i) * vpps.tanh(g)
        return vpps.sigmoid(o) * vpps.tanh(c), c

    def prepare(data: Data) -> Step:
        token, begins, inputs, seeds = np.arange(len(data.x)), *(tensor.numpy() for tensor in data[1:])
        children, levels = np.where(begins, -1, token - 1), token - np.maximum.accumulate(np.where(begins, token, 0))

        def run() -> list[Any]:
            graph = vpps.Graph()
            x = graph.rows(inputs, grad=True)
            h, _ = graph.map(cell, children=children, levels=levels, inputs={"x": x})
            (y,) = handle.forward(graph, [h], keep=True)
            gradients = handle.backward([seeds])
            return [y, handle.input_gradient(x), *(gradients[name] for name in weights)]

        return Step(run, lambda results: [torch.from_numpy(array) for array in results])

    return prepare


def rollout(layer: nn.Module, x: Tensor) -> Callable[[int], Tensor]:
    """Return a function that makes some steps with one frame, (batch, inputs), carries the state and returns h."""

    @torch.no_grad()
    def run(steps: int) -> Tensor:
        state: Any = None
        for _ in range(steps):
            state = layer(x, state) if isinstance(layer, nn.LSTMCell) else layer(x[None], state)[1]
        return state[0].view(len(x), -1)  # type: ignore[no-any-return]

    return run


def way(case: str, name: str, weights: Mapping[str, Tensor], threads: int) -> Callable[[Any], Any]:
    """Return a program's function from a mini-batch to a step, or from a frame to a rollout."""
    if name == "vpps-handle":
        return by_handle(weights, threads)
    source: Any = nn if name.startswith("torch") else vpps.torch
    kind = source.LSTMCell if name.endswith(("cell", "loop")) else source.LSTM
    layer = kind(weights["weight_ih_l0"].shape[1], weights["weight_hh_l0"].shape[1])
    layer.load_state_dict(dict(zip(layer.state_dict(), weights.values(), strict=True)))
    if case == "rollout":
        return partial(rollout, layer)
    if case == "resets":
        plain = partial(padded, lambda layer, x, resets: layer(x, resets=resets)[0])
    else:
        plain = partial(padded, lambda layer, x, resets: layer(x)[0])
    ways: dict[str, Any] = {
        "torch-packed": packed, "vpps-packed": packed, "vpps-packed-new": as_new,
        "vpps-list": listed, "torch-loop": partial(padded, loop),
        "torch-split": partial(split, before=False), "torch-split-before": partial(split, before=True),
    }  # fmt: skip
    return partial(ways.get(name, plain), layer)
