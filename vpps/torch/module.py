"""Module: a vpps model as a torch.nn.Module whose calls run graphs."""

from __future__ import annotations

import copy
import os
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch.autograd.forward_ad import unpack_dual
from torch.nn.parallel import DistributedDataParallel

import vpps
from vpps.engine.options import check_loss
from vpps.errors import GraphError, HandleError, ModelError, NoGradientError
from vpps.graph.graph import Graph
from vpps.model.model import Model, Parameter
from vpps.model.optim import SGD, Optimizer
from vpps.ops import Form
from vpps.ops.operand import Expression
from vpps.record.rows import Rows
from vpps.session.handle import Handle
from vpps.torch import copies
from vpps.torch.cores import advise
from vpps.torch.device_calls import DeviceCalls
from vpps.torch.function import HostCalls, InputTensors, LossFunction, TensorCall, ValuesFunction
from vpps.torch.state import adopt_extra_state, copied_model, extra_state
from vpps.torch.weights import Holder, SharedWeights, copies_on_load, in_torch
from vpps.values import as_flag, as_items

_OF_UPDATES = ("clip_norm", "ema", "autotune")
"""Options of a handle that have no effect if PyTorch updates the weights."""

FORWARD_MODE = (
    "vpps has no forward-mode derivatives: a tensor given to the graph, or a weight, carries a tangent (forward_ad, "
    "torch.func.jvp), which would be lost; compute gradients with backward"
)

NOT_COMPILED = "vpps runs graphs that differ from call to call; torch.compile compiles what is around them"


def not_compiled(function: Callable[..., Any]) -> Any:
    """Exclude a method from torch.compile. Its calls become graph breaks."""
    try:
        return torch.compiler.disable(function, reason=NOT_COMPILED)
    except TypeError:  # before PyTorch 2.7
        return torch.compiler.disable(function)


# Inside compiled functions, recording runs as plain Python, too, because it copies tensors. Only recurrent layers are
# traced.
_rules: Any = getattr(getattr(torch, "_dynamo", None), "trace_rules", None)
if hasattr(_rules, "add"):
    for _part in pkgutil.iter_modules(vpps.__path__):
        if _part.name != "torch":
            _rules.add(f"vpps.{_part.name}")


class Module(Holder):
    """A model as a layer of a PyTorch network.

        net = vpps.torch.Module(model)
        optimizer = torch.optim.Adam([*encoder.parameters(), *net.parameters()])
        graph = vpps.Graph()
        rows = graph.rows(encoder(words), grad=True)
        hidden = net(graph, cells(graph, rows))  # or loss = net.loss(graph, expression)
        loss_of(hidden).backward()
        optimizer.step()

    Its parameters are the model's weights: "tree/U" is `net.tree.U`, and "tree.U" in state dicts. On the host, they
    share the memory of the model's arrays. The next call notices in-place changes by PyTorch's optimizers or other
    code. It may miss writes to few elements through `tensor.data` or a NumPy view. `requires_grad` and `trainable` are
    one flag; the latest setting applies from the next call on. `eval()` disables dropout; every training forward draws
    a new mask.

    With target cuda, results are on the GPU. The parameters are there, too, if PyTorch updates them, and the model's
    arrays follow when they are read; a call returns before the GPU has computed, and misses writes through
    `tensor.data` except those of optimizers.

    Args:
        model: model with the parameters.
        optimizer: None lets PyTorch update the weights with gradients from vpps. With a vpps optimizer, every backward
            updates the model's weights in its launch, and their `grad` remains None.
        sparse: True gives tables sparse gradients, for `torch.optim.SparseAdam`.
        options: options of `vpps.Handle`: target, vps, ...

    Attributes:
        model: the argument `model`.
        handle: handle that runs the graphs.

    Raises:
        HandleError, ModelError, CompileError: as for `vpps.Handle`.
    """

    @torch.inference_mode(False)
    def __init__(
        self, model: Model, optimizer: Optimizer | None = None, *, sparse: bool = False, **options: Any
    ) -> None:
        super().__init__()
        if not isinstance(model, Model):
            raise ModelError(f"vpps.torch.Module({model!r}): expected a vpps.Model")
        model.refuse_if_averaged("vpps.torch.Module")
        useless = [name for name in _OF_UPDATES if optimizer is None and options.get(name)]
        if useless:
            raise HandleError(
                f"{useless[0]}={options[useless[0]]!r} is an option of vpps's updates, and PyTorch makes them here: do "
                "that in PyTorch (torch.nn.utils.clip_grad_norm_), or pass a vpps optimizer"
            )
        if options.get("world") is not None:
            raise HandleError(
                "vpps.torch.Module(world=...): PyTorch makes the steps, so sum gradients over ranks there, as in "
                "torch.distributed.all_reduce(p.grad); or train with vpps.Handle(model, optimizer, world=world)"
            )
        if options.get("train", True) and model.trainer is not None and model.trainer.pid == os.getpid():
            raise HandleError(
                "vpps.torch.Module: the model is trained by another Module, or Handle, already: use that one, which "
                "may be part of several networks, or close it (net.handle.close())"
            )
        self.model = model
        self.sparse = as_flag(sparse, "sparse", HandleError)
        self._updates = optimizer is not None
        self.handle = Handle(model, SGD(lr=0.0) if optimizer is None else optimizer, **options)
        gpu = copies.tensors.device(self.handle.target)
        self._calls = HostCalls(self.handle) if gpu is None else DeviceCalls(self.handle, gpu)
        try:
            self._weights = SharedWeights(self, self.handle, self._updates, gpu)
        except ModelError:
            self.handle.close()
            raise
        self._options = options
        self._prefix = ""  # prefix of its names in the state dict that is being loaded
        self.register_load_state_dict_post_hook(_note_loaded)
        # Stands in for parameters whose gradients PyTorch does not get; without an input, there would be no backward.
        self._anchor = torch.zeros((), device="cpu", requires_grad=True)
        self._drawn = model.step, 0

    # ---- calls

    @not_compiled
    def forward(self, graph: Graph, wanted: Expression | Rows | Sequence[Expression | Rows]) -> Any:
        """Compute values as tensors. Gradients flow through them to the weights, and to the graph's input tensors
        (`graph.rows(tensor, grad=True)`).

        Args:
            wanted: an expression, rows, or a list of them.

        Returns:
            A tensor, of shape (n, ...) for rows; a tuple of tensors for a list. With target cuda, they are on the GPU.

        Raises:
            GraphError, CapacityError, HandleError: as for `Handle.forward`; in backward, as for `Handle.backward`.
        """
        single = isinstance(wanted, Expression | Rows)
        items: list[Any] = [wanted] if single else as_items(wanted, "net(graph, wanted)")
        with self._weights.lock:
            outputs = self._values(graph, items, *self._call(graph), self._masks(graph))
        return outputs[0] if single else outputs

    @not_compiled
    def loss(self, graph: Graph, loss: Expression) -> Any:
        """Compute a scalar loss as a tensor, with its gradients in the same launch; backward only scales them. That is
        faster than `net(graph, loss)`. If vpps updates the weights, the two calls are equivalent.

        Raises:
            GraphError, CapacityError, HandleError: as for `Handle.gradients`.
        """
        if isinstance(graph, Graph):  # the handle reports other types
            check_loss(graph, loss)
        with self._weights.lock:
            call, inputs = self._call(graph)
            masks = self._masks(graph)
            if self._updates or not inputs:
                return self._values(graph, [loss], call, inputs, masks)[0]
            try:
                value = self._calls.loss(call, graph, loss, masks)
            except NoGradientError:
                return self._calls.values(graph, [loss], masks)[0]
            return LossFunction.apply(call, value, *inputs)

    def _values(
        self, graph: Graph, wanted: list[Expression | Rows], call: TensorCall, inputs: list[Any], masks: dict[str, Any]
    ) -> tuple[Any, ...]:
        if not inputs:
            return self._calls.values(graph, wanted, masks)
        try:
            found = self._calls.values(graph, wanted, masks, keep=True, update=self._updates and self.training)
        except NoGradientError:
            return self._calls.values(graph, wanted, masks)
        call.kept = self.handle.kept
        return tuple(ValuesFunction.apply(call, found, *inputs))

    def _call(self, graph: Graph) -> tuple[TensorCall, list[Any]]:
        """Return a call, and the tensors that need its gradients, if any."""
        self._weights.synchronise()
        if torch.jit.is_tracing() or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None:
            raise GraphError(
                "a graph differs for every input, but torch.jit.trace, make_fx and torch.export would keep the values "
                "of this one: trace what is around the layer"
            )
        advise(self.handle.target, self.handle.vps)
        wants = torch.is_grad_enabled()
        wanted = InputTensors(graph if wants else None)
        parameters: list[Parameter | None] = []
        inputs = wanted.tensors
        if wants and not self._updates:
            trained = self._weights.trained
            parameters, inputs = [s.parameter for s in trained], [*(s.tensor for s in trained), *inputs]
        elif wants and self.training:
            self._weights.refuse_hooks()
            if DistributedDataParallel._active_ddp_module is not None:
                raise HandleError(
                    "DistributedDataParallel sums gradients over ranks, but vpps updates the weights of this Module "
                    "by those of one rank: make it without an optimizer, so that PyTorch updates"
                )
            parameters, inputs = [None], [self._anchor, *inputs]
        if any(unpack_dual(t).tangent is not None for t in inputs):
            raise GraphError(FORWARD_MODE)
        call = TensorCall(self._calls, self._weights, wanted, parameters, self.sparse, inputs=inputs)
        return call, inputs

    def _masks(self, graph: Graph) -> dict[str, Any]:
        """Return options for one forward's dropout masks. Training forwards are numbered from vpps's latest step; each
        draws new masks, and the first draws those of `Handle.fb`."""
        if self._drawn[0] != self.model.step:
            self._drawn = self.model.step, 0
        step, draw = self._drawn
        if self.training and torch._C._current_graph_task_id() != -1 and _has_dropout(graph):
            raise GraphError(
                "a forward in training within a backward, as in torch.utils.checkpoint, has other masks of dropout "
                "than the first forward: leave the layer out of the checkpoint, or use PyTorch's dropout"
            )
        if self.training:
            self._drawn = step, draw + 1
        return {"train": self.training, "draw": draw}

    # ---- PyTorch's module interface

    def get_extra_state(self) -> Any:
        """Return steps, moments and averages as a tensor of bytes. `state_dict()` includes it."""
        self._weights.refresh()
        return extra_state(self.model, self._drawn, self._updates)

    def set_extra_state(self, state: Any) -> None:
        """Restore a result of `get_extra_state`, for `load_state_dict`. Raises ModelError if it does not fit."""
        self._weights.refresh()
        self._drawn = adopt_extra_state(self.model, state, self.handle.optimizer if self._updates else None)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, metadata: Any, strict: bool, missing: list[str], *others: Any
    ) -> None:
        """Load the weights. The extra state may be missing, as in files from another library or an old layer."""
        copies_on_load(metadata)
        self._prefix = prefix
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, *others)
        if (key := f"{prefix}_extra_state") in missing:
            missing.remove(key)

    def extra_repr(self) -> str:
        """Return this module's part of `repr(net)`."""
        return f"{self.model!r}, {self.handle!r}"

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> Module:
        """Implement `to`, `half`, `cuda` and such. Only other modules change; weights stay in place, in float32."""
        probe = fn(torch.zeros(1, dtype=torch.float32, device="cpu"))
        if probe.dtype != torch.float32:
            raise ModelError(
                f"vpps.torch.Module computes in float32, not {probe.dtype}: convert the modules around it, and its "
                "outputs, as in net(graph, rows).to(dtype)"
            )
        if probe.device.type == "meta" or probe.is_shared():
            raise ModelError(
                "vpps.torch.Module: its weights are the model's memory, which cannot be moved or shared; make a Module "
                "in each process and load_state_dict()"
            )
        if probe.device.type not in ("cpu", self._calls.device.type):
            raise ModelError(
                f"vpps.torch.Module: the handle computes on target {self.handle.target!r}, not on {probe.device}: make "
                "it with Module(model, target=...); inputs may be anywhere"
            )
        rest = torch.nn.Module()  # buffers, modules and parameters outside the model
        rest._buffers = self._buffers
        rest._modules, rest._parameters = self._others()
        dict.update(self._parameters, rest._apply(fn)._parameters)
        return self

    def _others(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the modules and parameters outside the model: those of a subclass, or added later."""
        own = {p.name.split("/")[0] for p in self.model}
        modules = {name: module for name, module in self._modules.items() if name not in own}
        return modules, {name: p for name, p in self._parameters.items() if name not in own}

    def __deepcopy__(self, memo: dict[int, Any]) -> Module:
        """Return a Module with its own copy of the model: the same weights, steps and moments.

        Cells and layers copied in the same call, as parts of one network, use the parameters of the copy.
        """
        self._weights.refresh()
        model = memo[id(self.model)] = copied_model(self.model)
        net: Module = type(self).__new__(type(self))
        memo[id(self)] = net
        optimizer = copy.deepcopy(self.handle.optimizer, memo) if self._updates else None
        Module.__init__(net, model, optimizer, sparse=self.sparse, **self._options)
        for name, value in self.__dict__.items():
            if name not in _OWN:
                net.__dict__[name] = copy.deepcopy(value, memo)
        for p in self.model:
            net._weights.adopt_copy(p.name, memo, self._weights)
        modules, parameters = copy.deepcopy(self._others(), memo)
        net._modules.update(modules)
        dict.update(net._parameters, parameters)
        return net

    def __copy__(self) -> NoReturn:
        raise ModelError(
            "a vpps.torch.Module cannot be copied or pickled, because its handle has its own threads and memory; use "
            "copy.deepcopy(net), which also copies the model, or torch.save(net.state_dict(), path)"
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        self.__copy__()


_OWN = frozenset(
    "_modules _parameters _load_state_dict_post_hooks _options _weights _anchor _calls model handle".split()
)
"""Attributes that the constructor of a copy sets."""


def _has_dropout(graph: Graph) -> bool:
    cells = graph.blocks if isinstance(graph, Graph) else ()  # the handle reports other types
    return any(node.op.form is Form.DROPOUT for cell in cells for node in cell.nodes)


def _note_loaded(net: Module, keys: Any) -> None:
    """Register loaded weights. Remove false "unexpected" keys: PyTorch reports names with a dot, because it takes the
    part before the dot for a module."""
    own = {net._prefix + in_torch(p.name) for p in net.model}
    keys.unexpected_keys[:] = [key for key in keys.unexpected_keys if key not in own]
    net._weights.synchronise(reading=True)
