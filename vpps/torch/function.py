"""Calls of a module as nodes of PyTorch's autograd graph; arrays as tensors, and tensors as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vpps.engine.gradients import Gradient, Gradients
from vpps.errors import GraphError
from vpps.graph.graph import Graph
from vpps.model.model import Parameter
from vpps.ops.operand import Expression
from vpps.record.rows import Rows
from vpps.session.halves import RetainedForward
from vpps.session.handle import Handle
from vpps.targets import TARGETS
from vpps.torch.weights import SharedWeights


def device_of(target: str) -> Any:
    """Where results belong: on the GPU, if one has computed them and PyTorch has it, too; else on the host."""
    row = TARGETS[target]
    return torch.device("cuda" if row.is_gpu and not row.is_emulated and torch.cuda.is_available() else "cpu")


def as_outputs(values: Sequence[NDArray[np.float32]], device: Any) -> tuple[Any, ...]:
    """What a handle gives as values; on the host they share its memory. Copies go through PyTorch's current stream."""
    tensors = map(torch.from_numpy, values)
    return tuple(tensors) if device.type == "cpu" else tuple(tensor.to(device) for tensor in tensors)


def as_gradient(gradient: Gradient, shape: tuple[int, ...], sparse: bool) -> Any:
    """What a handle gives as a parameter's gradient, as PyTorch takes it.

    Args:
        shape: of the parameter.
        sparse: whether the gradient of a table has only the rows that were used (COO); else it is dense.
    """
    if isinstance(gradient, np.ndarray):
        return torch.from_numpy(gradient)
    rows, values = torch.from_numpy(gradient.rows), torch.from_numpy(gradient.values)
    if sparse:
        return torch.sparse_coo_tensor(rows[None], values, shape, is_coalesced=True, check_invariants=False)
    dense = torch.zeros(shape, dtype=values.dtype, device=values.device)  # whatever PyTorch's defaults are
    return dense.index_copy_(0, rows, values)


def as_seed(gradient: Any) -> NDArray[np.float32] | None:
    """A gradient that PyTorch gives as an array on the host; it waits for the stream that computes it."""
    if gradient is None:
        return None
    if torch._C._functorch.is_batchedtensor(gradient) or torch._C._functorch.is_legacy_batchedtensor(gradient):
        raise GraphError(
            "backward: one gradient at a time, not a batch of them (is_grads_batched=True, jacobian(vectorize=True), "
            "torch.vmap): call torch.autograd.grad for each"
        )
    if gradient.layout != torch.strided:
        gradient = gradient.to_dense()
    seed: NDArray[np.float32] = gradient.detach().cpu().numpy()  # of the output's type, float32
    return seed


class Leaves:
    """The tensors that a graph has as inputs, in so far as they want gradients.

    Args:
        graph: that was given them, `graph.rows(tensor, grad=True)`. None for none.

    Raises:
        GraphError: one was changed after the graph had copied it, so that gradients would be another tensor's.
    """

    def __init__(self, graph: Graph | None) -> None:
        self.tensors: list[Any] = []
        self._inputs: list[Expression | Rows] = []
        if not isinstance(graph, Graph):  # nothing is wanted, or the handle says so
            return
        for tensor, version, ids, shape in graph.tensors:
            made = Expression(graph, ids, shape) if isinstance(ids, int) else Rows(graph, ids, shape)
            if version is not None and tensor._version != version:
                raise GraphError(
                    f"{made!r}: the tensor that it was made of has been changed in place since; give the graph a copy, "
                    "tensor.clone()"
                )
            self.tensors.append(tensor)
            self._inputs.append(made)

    def gradients(self, handle: Handle) -> list[Any]:
        """Of each tensor, of its type and on its device; the handle has just computed them."""
        found = zip(self.tensors, self._inputs, strict=True)
        return [torch.from_numpy(handle.input_gradient(made)).to(t.device, t.dtype) for t, made in found]


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
    kept: RetainedForward | None = None
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
