"""Parameters of a model as tensors of PyTorch over the same memory, and who has changed them since."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from vpps.errors import HandleError, ModelError
from vpps.model.model import Model, Parameter
from vpps.session.handle import Handle
from vpps.values import Float32

SAMPLE = 100
"""Weights of a tensor that are compared at least, where it has as many, to find changes that nobody counts."""


class LiveParameters(dict[str, Any]):
    """The `_parameters` of a torch.nn.Module: whoever reads them finds the newest weights.

    `parameters()`, `state_dict()` and attributes of this module, and of those around it, all read from here.
    """

    def __init__(self, weights: SharedWeights) -> None:
        super().__init__()
        self._weights = weakref.ref(weights)  # which has these: modules shall go with their last reference

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
    """Have `load_state_dict(assign=True)` copy: the weights stay in the model's memory."""
    if isinstance(local_metadata, dict):
        local_metadata["assign_to_params_buffers"] = False


_INTERNAL = frozenset("_anchor _device _drawn _options _prefix _weights handle model sparse training".split())


class Holder(torch.nn.Module):
    """A module whose own attributes and parameters may have the same names."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _INTERNAL:
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)


class Scope(Holder):
    """Parameters of a model under a common prefix, and the scopes therein."""

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *others: Any) -> None:
        copies_on_load(local_metadata)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *others)

    def __init__(self, weights: SharedWeights) -> None:
        super().__init__()
        self._parameters = LiveParameters(weights)


@dataclass(slots=True)
class SharedWeight:
    """A parameter and its tensor, and both as they were when last looked at.

    Attributes:
        array: the model's weights, whose memory the tensor shares.
        place: where the module has the tensor, under the name `key`.
        version: of the tensor, which every operator that writes to it counts up.
        packed: the version of the parameter.
        trainable: what both said.
        sample: bits of some of the weights: of what is written through `tensor.data`, or NumPy, nobody counts versions.
    """

    parameter: Parameter
    tensor: Any
    array: Float32
    place: LiveParameters
    key: str
    version: int
    packed: int
    trainable: bool
    address: int
    sample: bytes = b""

    def __post_init__(self) -> None:
        self.sample = self.sampled()

    def sampled(self) -> bytes:
        """Bits of SAMPLE of the weights or more, evenly spread: whoever exchanges weights exchanges most of them."""
        flat = self.array.reshape(-1)
        return flat[:: max(1, len(flat) // SAMPLE)].tobytes()

    def check_place(self) -> None:
        """Raise ModelError where the module has another tensor."""
        if self.place.get(self.key) is not self.tensor:
            raise ModelError(
                f"{self.parameter!r}: another tensor has been put in place of its weights (functional_call, "
                "load_state_dict(assign=True), parametrize or an assignment); copy values in, tensor.copy_(values)"
            )

    def has_changed(self, newer: bool) -> bool:
        """Whether PyTorch has written to the tensor since.

        Args:
            newer: the handle has other weights, which may be on their way here.
        """
        tensor = self.tensor
        if tensor.data_ptr() != self.address:
            self._adopt(tensor.data)
            return True
        if tensor._version != self.version:
            return True
        return not newer and self.packed == self.parameter.version and self.sample != self.sampled()

    def _adopt(self, data: Any) -> None:
        """Take over the values of an array that was put in place of the weights, `tensor.data = ...`."""
        expected = torch.from_numpy(self.array)
        if data.dtype != expected.dtype or data.shape != expected.shape or data.device != expected.device:
            raise ModelError(
                f"{self.parameter!r}: its weights have become {data.dtype} of shape {tuple(data.shape)} on "
                f"{data.device}; they are {expected.dtype} of shape {tuple(expected.shape)} on {expected.device}"
            )
        expected.copy_(data)
        self.tensor.data = expected

    def settle_trainable(self) -> None:
        """`requires_grad` and `trainable` are one thing: whichever has changed decides."""
        wanted, trainable = self.tensor.requires_grad, self.parameter.trainable
        if wanted != self.trainable:
            self.parameter.trainable = trainable = wanted
        elif trainable != wanted:
            self.tensor.requires_grad_(trainable)
        self.trainable = trainable


class SharedWeights:
    """All parameters of a model as tensors, registered with a module and submodules, one for each scope.

    Args:
        module: whose parameters they become.
        handle: the training handle.
        updates: whether it updates the weights; else PyTorch does.
    """

    def __init__(self, module: torch.nn.Module, handle: Handle, updates: bool) -> None:
        self.lock = threading.RLock()  # held from a launch until its results were taken
        self.trained: list[SharedWeight] = []  # of trainable parameters
        self._module = weakref.ref(module)
        self._model: Model = handle.model
        self._handle = handle
        self._updates = updates
        self._shared: dict[Parameter, SharedWeight] = {}
        self._layout = -1
        self._refreshing = False  # somebody reads the tensors, perhaps to put others in their places for a while
        module._parameters = LiveParameters(self)
        sharers = [sharer for sharer in self._model.sharers if sharer() is not None]
        self._model.sharers = [*sharers, weakref.WeakMethod(self.notice)]
        self.synchronise()

    def synchronise(self, reading: bool = False) -> None:
        """Note what has changed since the last call, on either side, so that only that is packed for the kernel again.

        Args:
            reading: somebody reads the tensors, perhaps to put others in their places for a while.

        Raises:
            HandleError: PyTorch has changed weights of which newer ones are with the handle.
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
        """Count what PyTorch has changed: the model is about to be launched or read by somebody else.

        It takes no lock and sets nothing but versions, because the caller may hold the lock of a handle.

        Raises:
            HandleError, ModelError: as `synchronise`.
        """
        self._notice(check=not self._refreshing)

    def _notice(self, check: bool) -> None:
        newer = self._handle.is_newer
        for shared in list(self._shared.values()):
            p = shared.parameter
            if check:
                shared.check_place()
            if shared.has_changed(newer):
                if self._updates and (p.version != shared.packed or newer):
                    raise HandleError(
                        f"{p!r}: PyTorch has changed its weights, but vpps has updated them meanwhile; read them first "
                        "(net.parameters(), net.state_dict()), or leave them out of PyTorch's optimizer"
                    )
                p.version += 1
                shared.version = shared.tensor._version
                shared.address = shared.tensor.data_ptr()
            if shared.packed != p.version:
                shared.packed, shared.sample = p.version, shared.sampled()

    def refresh(self) -> None:
        """Bring the tensors up to the handle, where that has newer weights."""
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
                    torch.autograd.graph.increment_version(shared.tensor)  # for whatever PyTorch has computed with them
                    shared.version, shared.packed = shared.tensor._version, shared.parameter.version
                    shared.sample = shared.sampled()

    def _share(self, p: Parameter) -> SharedWeight:
        same = next((other for other in self._shared if in_torch(other.name) == in_torch(p.name)), None)
        if same is not None:
            raise ModelError(f"{p!r} and {same!r} have the same name in PyTorch, {in_torch(p.name)!r}: rename one")
        tensor = torch.nn.Parameter(torch.from_numpy(p.host), requires_grad=p.trainable)
        tensor.shared_weights = weakref.ref(self)
        module = self._module()
        assert module is not None
        *scopes, name = p.name.split("/")
        if p.name == "_extra_state":
            raise ModelError(f"{p!r}: state dicts of a Module have its steps under this name; rename the parameter")
        for scope in scopes:
            if scope not in module._modules:
                module._modules[scope] = Scope(self)
            module = module._modules[scope]
        place = module._parameters
        # As `register_parameter`, which takes no name that is an attribute, such as "loss", and none with a dot.
        dict.__setitem__(place, name, tensor)
        return SharedWeight(p, tensor, p.host, place, name, tensor._version, p.version, p.trainable, tensor.data_ptr())


def in_torch(name: str) -> str:
    """A parameter's name in state dicts."""
    return name.replace("/", ".")


def _note_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Note at once what an optimizer has changed, for handles that know no tensors: a forward-only one beside, say."""
    whose: set[SharedWeights] = set()
    for group in optimizer.param_groups:
        for p in group["params"]:
            owner = getattr(p, "shared_weights", None)
            if owner is not None and (weights := owner()) is not None:
                whose.add(weights)
                if group.get("fused") and p.grad is not None:  # its operators do not count up versions
                    torch.autograd.graph.increment_version(p)
    for weights in whose:
        weights.synchronise(reading=True)


register_optimizer_step_post_hook(_note_step)
