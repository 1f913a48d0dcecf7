"""Calls of a module as nodes of PyTorch's autograd graph, and conversion between arrays and tensors."""

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
    """Return the device of results: the GPU if a GPU computes them and PyTorch can use it, else the host."""
    row = TARGETS[target]
    return torch.device("cuda" if row.is_gpu and not row.is_emulated and torch.cuda.is_available() else "cpu")


def as_outputs(values: Sequence[NDArray[np.float32]], device: Any) -> tuple[Any, ...]:
    """Convert a handle's values to tensors. Host values share memory; the current stream copies those on a GPU."""
    tensors = map(torch.from_numpy, values)
    return tuple(tensors) if device.type == "cpu" else tuple(tensor.to(device) for tensor in tensors)


def as_gradient(gradient: Gradient, shape: tuple[int, ...], sparse: bool) -> Any:
    """Convert a parameter's gradient from a handle to a tensor.

    Args:
        shape: shape of the parameter.
        sparse: True gives a table's gradient only its used rows (COO); False makes it dense.
    """
    if isinstance(gradient, np.ndarray):
        return torch.from_numpy(gradient)
    rows, values = torch.from_numpy(gradient.rows), torch.from_numpy(gradient.values)
    if sparse:
        return torch.sparse_coo_tensor(rows[None], values, shape, is_coalesced=True, check_invariants=False)
    dense = torch.zeros(shape, dtype=values.dtype, device=values.device)  # explicit, as PyTorch's defaults may differ
    return dense.index_copy_(0, rows, values)


def as_seed(gradient: Any) -> NDArray[np.float32] | None:
    """Convert a gradient from PyTorch to an array on the host. Waits for the stream that computes it."""
    return None if gradient is None else dense_seed(gradient).cpu().numpy()  # has the output's type, float32


def dense_seed(gradient: Any) -> Any:
    """Return a gradient from PyTorch as an ordinary tensor. Raises GraphError if it is a batch of gradients."""
    if torch._C._functorch.is_batchedtensor(gradient) or torch._C._functorch.is_legacy_batchedtensor(gradient):
        raise GraphError(
            "backward: one gradient at a time, not a batch of them (is_grads_batched=True, jacobian(vectorize=True), "
            "torch.vmap): call torch.autograd.grad for each"
        )
    if gradient.layout != torch.strided:
        gradient = gradient.to_dense()
    return gradient.detach()


class InputTensors:
    """The input tensors of a graph that require gradients.

    Args:
        graph: graph that received them by `graph.rows(tensor, grad=True)`; None means no tensors.

    Raises:
        GraphError: a tensor was changed after the graph copied it, so its gradients would be wrong.
    """

    def __init__(self, graph: Graph | None) -> None:
        self.tensors: list[Any] = []
        self._inputs: list[Expression | Rows] = []
        if not isinstance(graph, Graph):  # no gradients needed, or a wrong type, which the handle reports
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
        """Return each tensor's gradient, just computed by the handle, in the tensor's type and on its device."""
        found = zip(self.tensors, self._inputs, strict=True)
        return [torch.from_numpy(handle.input_gradient(made)).to(t.device, t.dtype) for t, made in found]


# Returns True if `backward` retains the graph. Old versions of PyTorch do not provide this, so assume True.
_retains = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)


@dataclass(slots=True)
class TensorCall:
    """State that a module's call keeps for its backward.

    Attributes:
        input_tensors: inputs of the graph that are tensors.
        parameters: parameters of the node's first inputs; None for an input that is not a parameter's tensor.
        sparse: True if gradients of tables are sparse.
        device: device of results.
        kept: the handle's token for the values.
        inputs: all input tensors of the node.
        found: gradients of all inputs of the node, if they were computed with the loss.
    """

    handle: Handle
    weights: SharedWeights
    input_tensors: InputTensors
    parameters: Sequence[Parameter | None]
    sparse: bool
    device: Any
    kept: RetainedForward | None = None
    found: Sequence[Any] = ()
    inputs: Sequence[Any] = ()

    def of_parameters(self, gradients: Gradients) -> list[Any]:
        """Return gradients in the order of `parameters`; None for unused ones."""
        found = [(p, None if p is None else gradients.get(p.name)) for p in self.parameters]
        return [None if p is None or g is None else as_gradient(g, p.shape, self.sparse) for p, g in found]


class _FirstOrderOnly(torch.autograd.Function):
    """Identity on gradients whose own backward raises GraphError."""

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


def first_order_only(gradients: Sequence[Any], sources: Sequence[Any]) -> tuple[Any, ...]:
    """Return a node's gradients. With `create_graph=True`, they become results of a node that raises in its backward;
    without that node, PyTorch would take them for constants. The node's inputs are all tensors that the gradients
    depend on, because `autograd.grad` visits only nodes on a path to its inputs."""
    if not torch.is_grad_enabled():
        return tuple(gradients)
    anchor = torch.zeros((), device="cpu", requires_grad=True)
    return tuple(_FirstOrderOnly.apply(len(gradients), *gradients, anchor, *sources))


def _remember(ctx: Any, call: TensorCall) -> None:
    """Keep a call until backward frees the graph. Saving a tensor makes autograd raise its usual error on a second
    backward."""
    ctx.call = call
    ctx.save_for_backward(torch.empty(0, device="cpu"))
    ctx.set_materialize_grads(False)


def _recall(ctx: Any) -> TensorCall:
    _ = ctx.saved_tensors
    call: TensorCall = ctx.call
    return call


def _result_of_backward(ctx: Any, gradients: Sequence[Any], seeds: Sequence[Any]) -> tuple[Any, ...]:
    """Return the result of a node's backward. Drops the call unless the graph is retained."""
    sources = [*ctx.call.inputs, *seeds]
    if not _retains():
        ctx.call = None
    return None, None, *first_order_only(gradients, sources)


class ValuesFunction(torch.autograd.Function):
    """Node for a forward's values. Its backward runs the handle's backward on PyTorch's gradients of the values."""

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
            found = [*call.of_parameters(gradients), *call.input_tensors.gradients(call.handle)]
        return _result_of_backward(ctx, found, seeds)


class LossFunction(torch.autograd.Function):
    """Node for a loss that was computed with its gradients. Its backward only scales them."""

    @staticmethod
    def forward(ctx: Any, call: TensorCall, loss: float, *inputs: Any) -> Any:
        _remember(ctx, call)
        return torch.tensor(loss, dtype=torch.float32, device=call.device)

    @staticmethod
    def backward(ctx: Any, seed: Any) -> Any:
        found, scale = _recall(ctx).found, float(as_seed(seed))  # type: ignore[arg-type]
        if scale != 1:
            found = [g if g is None else g * scale for g in found]
        elif _retains():  # the receiver may write to them, and another backward may need them
            found = [g if g is None else g.clone() for g in found]
        return _result_of_backward(ctx, found, [seed])
