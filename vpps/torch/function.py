"""Calls of a module as nodes of PyTorch's autograd graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vpps.engine.gradients import Gradients
from vpps.errors import GraphError
from vpps.model.model import Parameter
from vpps.session.halves import Kept
from vpps.session.handle import Handle
from vpps.torch.tensors import Leaves, as_gradient, as_outputs, as_seed
from vpps.torch.weights import SharedWeights

# Whether `backward` was told to retain the graph; where PyTorch does not say it may have been.
_retains = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)


@dataclass(slots=True)
class TensorCall:
    """What a call of a module needs for its backward.

    Attributes:
        leaves: inputs of the graph that are tensors.
        parameters: whose tensors come first among the inputs of the node; None for one that is no parameter's.
        sparse: whether gradients of tables are.
        device: of results.
        kept: the handle's token for the values.
        inputs: tensors that are the inputs of the node.
        found: gradients for all inputs of the node, where they came with the loss.
    """

    handle: Handle
    weights: SharedWeights
    leaves: Leaves
    parameters: Sequence[Parameter | None]
    sparse: bool
    device: Any
    kept: Kept | None = None
    found: Sequence[Any] = ()
    inputs: Sequence[Any] = ()

    def of_parameters(self, gradients: Gradients) -> list[Any]:
        """In their order; None of what nothing depends on."""
        found = [(p, None if p is None else gradients.get(p.name)) for p in self.parameters]
        return [None if p is None or g is None else as_gradient(g, p.shape, self.sparse) for p, g in found]


class _Once(torch.autograd.Function):
    """Gradients as they are, which say so where they are to be differentiated again."""

    @staticmethod
    def forward(ctx: Any, n: int, *gradients: Any) -> Any:
        ctx.set_materialize_grads(False)
        return tuple(g if g is None else g.clone() for g in gradients[:n])

    @staticmethod
    def backward(ctx: Any, *seeds: Any) -> Any:
        raise GraphError(
            "vpps's gradients are differentiable once: no backward goes through its backward (create_graph=True, "
            "gradient penalties, Hessians); leave what needs that in PyTorch"
        )


def _once(gradients: Sequence[Any], sources: Sequence[Any]) -> tuple[Any, ...]:
    """What a node's backward returns. With `create_graph=True` they are results of a node, too, whose inputs are all
    that they depend on: PyTorch would take them for constants, and `autograd.grad` visits only nodes on the way to what
    it is asked for."""
    if not torch.is_grad_enabled():
        return tuple(gradients)
    anchor = torch.zeros((), device="cpu", requires_grad=True)
    return tuple(_Once.apply(len(gradients), *gradients, anchor, *sources))


def _remember(ctx: Any, call: TensorCall) -> None:
    """Keep a call until the backward that frees the graph. With a tensor, so that autograd keeps the account, and says
    what it says of networks of its own where backward comes twice."""
    ctx.call = call
    ctx.save_for_backward(torch.empty(0, device="cpu"))
    ctx.set_materialize_grads(False)


def _recall(ctx: Any) -> TensorCall:
    _ = ctx.saved_tensors
    call: TensorCall = ctx.call
    return call


def _given_back(ctx: Any, gradients: Sequence[Any], seeds: Sequence[Any]) -> tuple[Any, ...]:
    """What a node's backward returns."""
    sources = [*ctx.call.inputs, *seeds]
    if not _retains():
        ctx.call = None
    return None, None, *_once(gradients, sources)


class ValuesFunction(torch.autograd.Function):
    """Values that a forward has kept; backward makes gradients of what PyTorch has made of them."""

    @staticmethod
    def forward(ctx: Any, call: TensorCall, values: Sequence[Any], *inputs: Any) -> Any:
        _remember(ctx, call)
        return as_outputs(values, call.device)

    @staticmethod
    def backward(ctx: Any, *seeds: Any) -> Any:
        call = _recall(ctx)
        given = [as_seed(seed) for seed in seeds]
        with call.weights.lock:
            call.weights.synchronise()
            gradients = call.handle.backward(given, call.kept)
            found = [*call.of_parameters(gradients), *call.leaves.gradients(call.handle)]
        return _given_back(ctx, found, seeds)


class LossFunction(torch.autograd.Function):
    """A loss whose gradients came with it; backward scales them."""

    @staticmethod
    def forward(ctx: Any, call: TensorCall, loss: float, *inputs: Any) -> Any:
        _remember(ctx, call)
        return torch.tensor(loss, dtype=torch.float32, device=call.device)

    @staticmethod
    def backward(ctx: Any, seed: Any) -> Any:
        found, scale = _recall(ctx).found, float(as_seed(seed))  # type: ignore[arg-type]
        if scale != 1:
            found = [g if g is None else g * scale for g in found]
        elif _retains():  # another backward may come, and whoever gets them may write to them
            found = [g if g is None else g.clone() for g in found]
        return _given_back(ctx, found, [seed])
