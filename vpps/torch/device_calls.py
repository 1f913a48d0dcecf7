"""Calls of a handle with tensors on a GPU: results and gradients are copied from device to device.

A call waits for the launch before the previous one, and returns before the GPU has computed its own, unless vpps
updates the weights. A later call, or `handle.close()`, reports a launch that fails. The values of a graph's inputs are
words of the script, which the host writes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from vpps.engine.readback import addresses_of, gradient_addresses
from vpps.graph.graph import Graph
from vpps.model.model import Parameter
from vpps.ops.operand import Expression
from vpps.placement.distribution import Pool
from vpps.planner.plan import Plan
from vpps.record.rows import Rows
from vpps.session.handle import Handle
from vpps.session.replay import Span
from vpps.torch.copies import Copies, FloatPlace, Part, copying, to_gpu
from vpps.torch.function import HostCalls, TensorCall, dense_seed
from vpps.turns import Turn, serialised


class DeviceCalls(HostCalls):
    """`HostCalls` for a handle of target cuda, with tensors on its GPU."""

    def __init__(self, handle: Handle, device: Any) -> None:
        super().__init__(handle)
        self.device = device

    @property
    def _turn(self) -> Turn:
        return self.handle._turn

    @serialised
    def values(
        self,
        graph: Graph,
        wanted: list[Expression | Rows],
        masks: Mapping[str, Any],
        keep: bool = False,
        update: bool = False,
    ) -> tuple[Any, ...]:
        plan, wanted = self.handle._begin_forward(graph, wanted, keep=keep, update=update, **masks, waits=False)
        if plan is None:
            return tuple(self._empty(0, *e.shape) for e in wanted)
        with self._copying() as copies:
            return tuple(self._read(copies, [(e, addresses_of(plan, e, "forward")) for e in wanted]))

    @serialised
    def loss(self, call: TensorCall, graph: Graph, loss: Expression, masks: Mapping[str, Any]) -> Any:
        self.handle._check(graph, "gradients", training=True)
        plan = self.handle._begin_gradients(graph, loss, **masks, waits=False)
        with self._copying() as copies:
            found = self._gradients(copies, call, plan)
            value = self._read(copies, [(loss, addresses_of(plan, loss, "loss"))])[0]
        call.found = call.input_tensors.converted(found)
        return value

    @serialised
    def backward(self, call: TensorCall, seeds: Sequence[Any]) -> list[Any]:
        kept = self.handle._checked_kept(call.kept)
        given = [None if seed is None else dense_seed(seed) for seed in seeds]

        def give(_: Pool, at: int) -> None:
            with self._copying() as copies:
                for e, seed in zip(kept.wanted, given, strict=True):
                    count = math.prod(e.shape) * (len(e) if isinstance(e, Rows) else 1)
                    if seed is None:
                        copies.clear(at, count)
                    else:
                        copies.write(FloatPlace(at), Part(seed.reshape(-1)))
                    at += count

        plan = self.handle._begin_backward(kept, give, waits=False)
        with self._copying() as copies:
            found = self._gradients(copies, call, plan)
        return call.input_tensors.converted(found)

    def _copying(self) -> Any:
        return copying(self.handle._engine.machine, self.device)

    def _empty(self, *shape: int) -> Any:
        return torch.empty(shape, dtype=torch.float32, device=self.device)

    def _read(self, copies: Copies, readings: Iterable[tuple[Expression | Rows, Any]]) -> list[Any]:
        """Return the values of expressions and rows, each given with its addresses in the pool."""
        found = []
        for e, addresses in readings:
            span = Span.of(addresses, math.prod(e.shape))
            copies.read(FloatPlace.of(span.key, self.device), Part(flat := self._empty(*span.shape)))
            found.append(flat.view((len(e), *e.shape) if isinstance(e, Rows) else e.shape))
        return found

    def _gradients(self, copies: Copies, call: TensorCall, plan: Plan) -> list[Any]:
        """Return gradients of parameters, None for unused ones, followed by those of the input tensors."""
        found = [None if p is None else self._learned(copies, plan, p, call.sparse) for p in call.parameters]
        readings = [(made, gradient_addresses(plan, made)) for made in call.input_tensors.inputs]
        return found + self._read(copies, readings)

    def _learned(self, copies: Copies, plan: Plan, p: Parameter, sparse: bool) -> Any:
        """Return the gradient of a parameter; None if the results do not depend on it."""
        if p in plan.tables:
            used = plan.tables[p]
            values, numbers = self._empty(len(used.rows), *p.shape[1:]), to_gpu(used.rows, self.device)
            copies.read(FloatPlace(used.gradient), Part(values))
            if sparse:
                return torch.sparse_coo_tensor(
                    numbers[None], values, p.shape, is_coalesced=True, check_invariants=False
                )
            dense = self._empty(*p.shape)
            copies.run(lambda: dense.zero_().index_copy_(0, numbers, values))
            return dense
        if p in plan.touched:
            place = self.handle._store.distribution.places[p]
            copies.read(FloatPlace(place.gradient), Part(gradient := self._empty(*p.shape)))
            return gradient
        return self._empty(*p.shape).zero_() if p in plan.reached else None
