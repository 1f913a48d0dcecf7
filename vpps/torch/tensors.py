"""Arrays as tensors, and tensors as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vpps.engine.gradients import Gradient
from vpps.errors import GraphError
from vpps.graph.graph import Graph
from vpps.ops.operand import Expression
from vpps.record.rows import Rows
from vpps.session.handle import Handle
from vpps.targets import TARGETS


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
