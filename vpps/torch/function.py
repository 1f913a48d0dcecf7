"""Calls of a module as nodes of PyTorch's autograd graph, and conversion between arrays and tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from vpps.torch.weights import SharedWeights


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
    return gradient.detach().resolve_neg()  # copies read bits


class InputTensors:
    """The input tensors of a graph that require gradients.

    Args:
        graph: graph that received them by `graph.rows(tensor, grad=True)`; None means no tensors.

    Raises:
        GraphError: a tensor was changed after the graph copied it, so its gradients would be wrong.
    """

    def __init__(self, graph: Graph | None) -> None:
        self.tensors: list[Any] = []
        self.inputs: list[Expression | Rows] = []
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
            self.inputs.append(made)

    def converted(self, gradients: list[Any]) -> list[Any]:
        """Return gradients, of which the last ones belong to the tensors, with these in the tensors' types and on their
        devices."""
        first = len(gradients) - len(self.tensors)
        of_tensors = zip(self.tensors, gradients[first:], strict=True)
        return [*gradients[:first], *(g.to(t.device, t.dtype) for t, g in of_tensors)]


# Returns True if `backward` retains the graph. Old versions of PyTorch do not provide this, so assume True.
_retains = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)


@dataclass(slots=True)
class TensorCall:
    """State that a module's call keeps for its backward.

    Attributes:
        input_tensors: inputs of the graph that are tensors.
        parameters: parameters of the node's first inputs; None for an input that is not a parameter's tensor.
        sparse: True if gradients of tables are sparse.
        kept: the handle's token for the values.
        inputs: all input tensors of the node.
        found: gradients of all inputs of the node, if they were computed with the loss.
    """

    calls: HostCalls
    weights: SharedWeights
    input_tensors: InputTensors
    parameters: Sequence[Parameter | None]
    sparse: bool
    kept: RetainedForward | None = None
    found: Sequence[Any] = ()
    inputs: Sequence[Any] = ()


class HostCalls:
    """Calls of a handle with tensors. The arrays of the host share their memory with the tensors.

    Args:
        handle: the handle; if it updates the weights, a backward is an update.
    """

    device = torch.device("cpu")

    def __init__(self, handle: Handle) -> None:
        self.handle = handle

    def values(
        self,
        graph: Graph,
        wanted: list[Expression | Rows],
        masks: Mapping[str, Any],
        keep: bool = False,
        update: bool = False,
    ) -> tuple[Any, ...]:
        """Call `Handle.forward`, and return the values.

        Args:
            masks: options of `Handle.forward` for dropout.
        """
        return tuple(map(torch.from_numpy, self.handle.forward(graph, wanted, keep=keep, update=update, **masks)))

    def loss(self, call: TensorCall, graph: Graph, loss: Expression, masks: Mapping[str, Any]) -> Any:
        """Call `Handle.gradients`. Return the loss, and keep the gradients in `call`."""
        value, gradients = self.handle.gradients(graph, loss, sparse=True, **masks)
        call.found = self._found(call, gradients)
        return torch.tensor(value, dtype=torch.float32, device=self.device)

    def backward(self, call: TensorCall, seeds: Sequence[Any]) -> list[Any]:
        """Call `Handle.backward`, and return the gradients of the node's inputs."""
        return self._found(call, self.handle.backward([as_seed(seed) for seed in seeds], call.kept))

    def _found(self, call: TensorCall, gradients: Gradients) -> list[Any]:
        """Return gradients of parameters, None for unused ones, followed by those of the input tensors."""
        found: list[Any] = []
        for p in call.parameters:
            g = None if p is None else gradients.get(p.name)
            found.append(None if p is None or g is None else as_gradient(g, p.shape, call.sparse))
        found += [torch.from_numpy(self.handle.input_gradient(made)) for made in call.input_tensors.inputs]
        return call.input_tensors.converted(found)


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
        return tuple(values)

    @staticmethod
    def backward(ctx: Any, *seeds: Any) -> Any:
        call = _recall(ctx)
        with call.weights.lock:
            call.weights.synchronise()
            found = call.calls.backward(call, seeds)
        return _result_of_backward(ctx, found, seeds)


class LossFunction(torch.autograd.Function):
    """Node for a loss that was computed with its gradients. Its backward only scales them."""

    @staticmethod
    def forward(ctx: Any, call: TensorCall, loss: Any, *inputs: Any) -> Any:
        _remember(ctx, call)
        return loss

    @staticmethod
    def backward(ctx: Any, seed: Any) -> Any:
        found, scale = _recall(ctx).found, dense_seed(seed)
        if scale.device.type != "cpu" or scale != 1:  # the host does not wait for a GPU
            found = [g if g is None else g * scale for g in found]
        elif _retains():  # the receiver may write to them, and another backward may need them
            found = [g if g is None else g.clone() for g in found]
        return _result_of_backward(ctx, found, [seed])
