"""Model parameters as PyTorch tensors in shared memory, and detection of changes on either side."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from vpps.errors import HandleError, ModelError
from vpps.model.model import Model, Parameter
from vpps.placement.distribution import Distribution
from vpps.session.handle import Handle
from vpps.torch import copies
from vpps.values import Float32

_owners: weakref.WeakValueDictionary[int, SharedWeights] = weakref.WeakValueDictionary()
"""Owners of tensors by the tensors' ids. An attribute of the tensor would be pickled with it."""

SAMPLE = 100
"""Minimum number of weights per tensor, if it has as many, that are compared to find changes without a new version."""


class LiveParameters(dict[str, Any]):
    """The `_parameters` of a torch.nn.Module. Reading them first fetches the newest weights.

    `parameters()`, `state_dict()` and the attributes of this module and of enclosing modules read from here.
    """

    def __init__(self, weights: SharedWeights) -> None:
        super().__init__()
        self._weights = weakref.ref(weights)  # weak, to avoid a cycle that would keep modules alive

    def _refresh(self) -> None:
        if (weights := self._weights()) is not None:
            weights.refresh()

    def __getitem__(self, name: str) -> Any:
        self._refresh()
        return super().__getitem__(name)

    def items(self) -> Any:
        self._refresh()
        return super().items()

    def values(self) -> Any:
        self._refresh()
        return super().values()


def copies_on_load(local_metadata: Any) -> None:
    """Make `load_state_dict(assign=True)` copy, because the weights must stay in the model's memory."""
    if isinstance(local_metadata, dict):
        local_metadata["assign_to_params_buffers"] = False


_INTERNAL = frozenset("_anchor _calls _drawn _options _prefix _weights handle model sparse training".split())


class Holder(torch.nn.Module):
    """A module whose internal attributes and parameters may have the same names."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _INTERNAL:
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)


class Scope(Holder):
    """Submodule with a model's parameters under a common prefix, and its nested scopes."""

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *others: Any) -> None:
        copies_on_load(local_metadata)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *others)

    def __init__(self, weights: SharedWeights) -> None:
        super().__init__()
        self._parameters = LiveParameters(weights)


class GpuWeights:
    """A parameter's weights in a tensor on the GPU; implements `vpps.model.model.Lender`.

    It notices writes that change the tensor's version, and steps of optimizers. It assumes that they are in the stream
    that is current when it notices them; copies in other streams wait for that stream.

    Args:
        p: the parameter; its array on the host is current.
        device: the GPU, which is that of the machine with the identity `gpu`.
    """

    def __init__(self, p: Parameter, device: Any, gpu: bytes) -> None:
        self.p, self._home, self._gpu = weakref.ref(p), p.host, gpu
        self._lock, self._pid = threading.RLock(), os.getpid()
        self.follow(torch.from_numpy(self._home).to(device, copy=True))
        self._version = p.version

    def follow(self, tensor: Any) -> None:
        """Use another tensor with the same values."""
        self.tensor, self.memory = tensor, tensor.detach()
        self._noticed = self._brought = tensor._version
        self._written = copies.tensors.mark(tensor.device)

    def bring(self, host: Float32) -> None:
        """Implement `Lender.bring`. Waits for the GPU. The array of `Model.averaged` remains unchanged.

        Raises:
            HandleError: this process was forked, and the array is outdated.
        """
        version = self.tensor._version
        if host is not self._home or version == self._brought:
            return
        if os.getpid() != self._pid:
            raise HandleError(
                "this process was forked, and cannot read weights from the GPU: read them before, as in model.numpy() "
                "or net.state_dict()"
            )
        with self._lock:
            copies.tensors.wait_for(self._written, self.tensor.device)
            torch.from_numpy(host).copy_(self.memory)
            self._brought = version

    def notice(self, p: Parameter, mark: Callable[[], Any]) -> None:
        """Count changes to the tensor, and copy assigned weights to it. `mark` returns an event of the stream."""
        if p.model.is_averaged:  # it shows values that are not its weights
            return
        with self._lock:
            # Other threads may write meanwhile: remember the versions that were compared.
            version, number = self.tensor._version, p.version
            if version == self._noticed and number == self._version:
                return
            if number != self._version and version == self._brought:  # an assignment first brings the newest weights
                with torch.no_grad():
                    self.tensor.copy_(torch.from_numpy(self._home))  # the host waits for it
                self._brought = version = version + 1
            elif version != self._noticed:
                p.version += 1
                number += 1
            self._noticed, self._version = version, number
            self._written = mark()

    def can_put(self, machine: Any, distribution: Distribution) -> bool:
        """Implement `Lender.can_put`. Weights in reduced precision are packed on the host."""
        p = self.p()
        if p is None or machine.gpu != self._gpu or self._version != p.version:  # averages, or no module is left
            return False
        return not distribution.places[p].rounded

    def put(self, machine: Any, distribution: Distribution, parameters: Sequence[Parameter]) -> None:
        """Implement `Lender.put`."""
        lenders: list[Any] = [p.lender for p in parameters]
        for mark in {id(lender._written): lender._written for lender in lenders}.values():
            copies.tensors.wait_for(mark, self.tensor.device)
        with copies.copying(machine, self.tensor.device) as begun:
            for p, lender in zip(parameters, lenders, strict=True):
                copies.put_weights(begun, distribution, p, lender.memory)


@dataclass(slots=True)
class SharedWeight:
    """A parameter and its tensor, with the state of both at the last check.

    Attributes:
        array: the model's weights, whose memory the tensor shares; None if the weights are on a GPU.
        lender: owner of the weights on the GPU, whose memory the tensor shares; None if they are on the host.
        place: the module's dict that holds the tensor under the name `key`.
        scopes: path to the owner of `place`: for each enclosing scope, its parent's dict, its name and its module.
        version: version of the tensor. Every operator that writes to the tensor increments it.
        packed: version of the parameter.
        trainable: common value of `trainable` and `requires_grad`.
        address: address of the tensor's memory.
        sample: bits of some weights, because writes through `tensor.data` or NumPy do not change the version.
    """

    parameter: Parameter
    tensor: Any
    array: Float32 | None
    lender: GpuWeights | None
    place: LiveParameters
    scopes: Sequence[tuple[Any, str, torch.nn.Module]]
    key: str
    version: int
    packed: int
    trainable: bool
    address: int
    sample: bytes = b""

    def __post_init__(self) -> None:
        self.sample = self.sampled()

    def sampled(self) -> bytes:
        """Return bits of at least SAMPLE evenly spaced weights. Code that replaces weights replaces most of them.
        Return nothing for weights on a GPU, because the host would have to wait for it."""
        if self.array is None:
            return b""
        flat = self.array.reshape(-1)
        return flat[:: max(1, len(flat) // SAMPLE)].tobytes()

    def check_place(self) -> None:
        """Raise ModelError if the module holds a different tensor."""
        if self.place.get(self.key) is not self.tensor or any(of.get(name) is not at for of, name, at in self.scopes):
            raise ModelError(
                f"{self.parameter!r}: another tensor or module has been put in place of its weights (functional_call, "
                "parametrize, weight_norm, a tie or an assignment); copy values with tensor.copy_(values), and write "
                "computations on weights, and ties, in the cells"
            )

    def has_changed(self, newer: bool) -> bool:
        """Return True if PyTorch has written to the tensor since the last check.

        Args:
            newer: True if the handle has newer weights. They may be on their way to the tensor.
        """
        tensor = self.tensor
        if tensor.data_ptr() != self.address:
            self._adopt(tensor.data)
            return True
        if tensor._version != self.version:
            return True
        return not newer and self.packed == self.parameter.version and self.sample != self.sampled()

    def _adopt(self, data: Any) -> None:
        """Copy the values of an array that the user assigned by `tensor.data = ...`, and restore the shared memory."""
        expected = torch.from_numpy(self.array) if self.lender is None else self.lender.memory
        if data.dtype != expected.dtype or data.shape != expected.shape or data.device != expected.device:
            raise ModelError(
                f"{self.parameter!r}: its weights have become {data.dtype} of shape {tuple(data.shape)} on "
                f"{data.device}; they are {expected.dtype} of shape {tuple(expected.shape)} on {expected.device}"
            )
        expected.copy_(data)
        self.tensor.data = expected
        torch.autograd.graph.increment_version(self.tensor)

    def settle_trainable(self) -> None:
        """Make `requires_grad` and `trainable` equal by copying the flag that has changed."""
        wanted, trainable = self.tensor.requires_grad, self.parameter.trainable
        if wanted != self.trainable:
            self.parameter.trainable = trainable = wanted
        elif trainable != wanted:
            self.tensor.requires_grad_(trainable)
        self.trainable = trainable


class SharedWeights:
    """All parameters of a model as tensors, registered with a module and with one submodule per scope.

    Args:
        module: module that gets the parameters.
        handle: the training handle.
        updates: True if the handle updates the weights, False if PyTorch does.
        gpu: GPU of the results, or None. It holds the weights if PyTorch updates them.

    Raises:
        ModelError: the weights of an open Module of this model are elsewhere.
    """

    def __init__(self, module: torch.nn.Module, handle: Handle, updates: bool, gpu: Any) -> None:
        self.lock = threading.RLock()  # held from a launch until its results are read
        self.trained: list[SharedWeight] = []  # trainable parameters
        self._module = weakref.ref(module)
        self._model: Model = handle.model
        self._handle = handle
        self._updates = updates
        others = [other.__self__ for sharer in handle.model.sharers if (other := sharer()) is not None]
        still_open = [other for other in others if not other._handle._closed]
        lends = any(other._device is not None for other in still_open)
        # Without training, a Module uses the weights where they are.
        self._device = gpu if gpu is not None and (lends or (handle._train and not updates)) else None
        if any(other._device != self._device for other in still_open):
            raise ModelError(
                "vpps.torch.Module: an open Module of this model has its weights on "
                f"{'the GPU' if lends else 'the host'}, where this one cannot use them: close it first "
                "(net.handle.close()), or evaluate with vpps.Handle(model, train=False)"
            )
        self._is_retired = False  # True if a Module with weights in another place has replaced this one
        self._shared: dict[Parameter, SharedWeight] = {}
        self._layout = -1
        self._refreshing = False  # True while a caller reads the tensors and may replace them
        module._parameters = LiveParameters(self)
        for other in others:
            other._is_retired = other._device != self._device
        kept = [*(other for other in others if not other._is_retired), self]
        self._model.sharers = [weakref.WeakMethod(each.notice) for each in kept]
        self.synchronise()

    def synchronise(self, reading: bool = False) -> None:
        """Find the changes on either side since the last call, so that only changed weights are packed again.

        Args:
            reading: True if the caller reads the tensors, perhaps to replace them temporarily.

        Raises:
            HandleError: PyTorch has changed weights, but the handle has newer weights.
            ModelError: a tensor was replaced.
        """
        self._notice(check=not reading)
        for shared in self._shared.values():
            shared.settle_trainable()
        if self._layout != self._model.layout_version:
            for p in self._model:
                if p not in self._shared:
                    self._shared[p] = self._share(p)
            self.trained = [shared for shared in self._shared.values() if shared.trainable]
            self._layout = self._model.layout_version

    def notice(self) -> None:
        """Count PyTorch's changes, before another object launches or reads the model.

        It takes no lock of a module, because the caller may hold the lock of a handle. It sets versions, and copies
        assigned weights to tensors on a GPU.

        Raises:
            HandleError, ModelError: as for `synchronise`.
        """
        self._notice(check=not self._refreshing)

    def _notice(self, check: bool) -> None:
        newer = self._handle.is_newer
        mark = None if self._device is None else cache(self._mark)  # one event for all weights
        for shared in [] if self._is_retired else list(self._shared.values()):
            p = shared.parameter
            if check:
                shared.check_place()
            changed = shared.has_changed(newer)
            if shared.lender is not None and mark is not None:
                shared.lender.notice(p, mark)
            elif changed:
                if self._updates and (p.version != shared.packed or newer):
                    raise HandleError(
                        f"{p!r}: PyTorch has changed its weights, but vpps has updated them meanwhile; read them first "
                        "(net.parameters(), net.state_dict()), or remove them from PyTorch's optimizer"
                    )
                p.version += 1
            if changed:
                shared.version, shared.address = shared.tensor._version, shared.tensor.data_ptr()
            if shared.packed != p.version:
                shared.packed, shared.sample = p.version, shared.sampled()

    def _mark(self) -> Any:
        return copies.tensors.mark(self._device)

    def refuse_hooks(self) -> None:
        """Raise HandleError if a hook waits for a gradient that only vpps sees."""
        for shared in self.trained:
            if shared.tensor._backward_hooks or shared.tensor._post_accumulate_grad_hooks:
                raise HandleError(
                    f"{shared.parameter!r} has a hook for its gradient, which vpps uses up in its update: remove the "
                    "hook, or make the Module without an optimizer, so that PyTorch updates"
                )

    def refresh(self) -> None:
        """Update the tensors if the handle has newer weights."""
        with self.lock:
            self.synchronise(reading=True)
            if not (self._updates and self._handle.is_newer):
                return
            self._refreshing = True
            try:
                self._model.pull_weights()
            finally:
                self._refreshing = False
            for shared in self._shared.values():
                if shared.packed != shared.parameter.version:
                    torch.autograd.graph.increment_version(shared.tensor)  # invalidates PyTorch's saved results
                    shared.version, shared.packed = shared.tensor._version, shared.parameter.version
                    shared.sample = shared.sampled()

    def adopt_copy(self, name: str, memo: dict[int, Any], of: SharedWeights) -> None:
        """Adopt the copy that `copy.deepcopy` has made of another module's tensor, if a tied layer was copied first."""
        shared = self._shared[self._model[name]]
        copied = memo.setdefault(id(of._shared[of._model[name]].tensor), shared.tensor)
        if copied is not shared.tensor:
            copied.data = shared.tensor.data
            if shared.lender is not None:
                shared.lender.follow(copied)
            dict.__setitem__(shared.place, shared.key, copied)
            del _owners[id(shared.tensor)]  # another tensor may get its id
            shared.tensor, shared.version = copied, copied._version
            _owners[id(copied)] = self

    @torch.inference_mode(False)
    def _share(self, p: Parameter) -> SharedWeight:
        same = next((other for other in self._shared if in_torch(other.name) == in_torch(p.name)), None)
        if same is not None:
            raise ModelError(f"{p!r} and {same!r} have the same name in PyTorch, {in_torch(p.name)!r}: rename one")
        array: Float32 | None = p.host
        memory, lender = torch.from_numpy(array), None
        if self._device is None:
            p.lender = None
        else:
            if p.lender is None:
                p.lender = GpuWeights(p, self._device, self._handle._engine.machine.gpu)
            lender = cast(GpuWeights, p.lender)
            lender.notice(p, self._mark)
            array, memory = None, lender.memory
        tensor = torch.nn.Parameter(memory, requires_grad=p.trainable)
        _owners[id(tensor)] = self
        module = self._module()
        assert module is not None
        *scopes, name = p.name.split("/")
        if p.name == "_extra_state":
            raise ModelError(f"{p!r}: a Module's state dict uses this name for its steps; rename the parameter")
        way = []
        for scope in scopes:
            around = module._modules
            if scope not in around:
                around[scope] = Scope(self)
            module = around[scope]
            way.append((around, scope, module))
        place = module._parameters
        # Like `register_parameter`, but that rejects attribute names, such as "loss", and names with a dot.
        dict.__setitem__(place, name, tensor)
        seen = tensor._version, p.version, p.trainable, tensor.data_ptr()
        return SharedWeight(p, tensor, array, lender, place, way, name, *seen)


def in_torch(name: str) -> str:
    """Return a parameter's name in state dicts."""
    return name.replace("/", ".")


def _note_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Count an optimizer's changes at once, for handles that do not know the tensors, such as forward-only handles."""
    whose: set[SharedWeights] = set()
    for group in optimizer.param_groups:
        for p in group["params"]:
            if (weights := _owners.get(id(p))) is not None:
                whose.add(weights)
                if p.grad is not None:  # fused operators, p.data and exchanges between ranks do not change versions
                    torch.autograd.graph.increment_version(p)
    for weights in whose:
        weights.synchronise(reading=True)


register_optimizer_step_post_hook(_note_step)
