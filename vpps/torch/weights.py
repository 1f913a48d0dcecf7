"""Parameters of a model as tensors of PyTorch over the same memory, and who has changed them since."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from vpps.errors import HandleError, ModelError
from vpps.model.model import Model, Parameter
from vpps.session.handle import Handle
from vpps.values import Float32

_owners: weakref.WeakValueDictionary[int, SharedWeights] = weakref.WeakValueDictionary()
"""Whose a tensor is, by its id: an attribute of it would be pickled with it."""

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
        scopes: where modules have the one that has `place`, and those around it: a dict, a name and the module each.
        version: of the tensor, which every operator that writes to it counts up.
        packed: the version of the parameter.
        trainable: what both said.
        sample: bits of some of the weights: of what is written through `tensor.data`, or NumPy, nobody counts versions.
    """

    parameter: Parameter
    tensor: Any
    array: Float32
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
        """Bits of SAMPLE of the weights or more, evenly spread: whoever exchanges weights exchanges most of them."""
        flat = self.array.reshape(-1)
        return flat[:: max(1, len(flat) // SAMPLE)].tobytes()

    def check_place(self) -> None:
        """Raise ModelError where the module has another tensor."""
        if self.place.get(self.key) is not self.tensor or any(of.get(name) is not at for of, name, at in self.scopes):
            raise ModelError(
                f"{self.parameter!r}: another tensor or module has been put in place of its weights (functional_call, "
                "parametrize, weight_norm, a tie or an assignment); copy values in, tensor.copy_(values), and write "
                "what is computed of weights, and ties, in the cells"
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

    def refuse_hooks(self) -> None:
        """Raise HandleError where a hook waits for a gradient that only vpps sees."""
        for shared in self.trained:
            if shared.tensor._backward_hooks or shared.tensor._post_accumulate_grad_hooks:
                raise HandleError(
                    f"{shared.parameter!r} has a hook for its gradient, which vpps uses up in its update: remove the "
                    "hook, or make the Module without an optimizer, so that PyTorch updates"
                )

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

    def adopt_copy(self, name: str, memo: dict[int, Any], of: SharedWeights) -> None:
        """Have the copy that `copy.deepcopy` made of another's tensor: a layer tied to it may have come first."""
        shared = self._shared[self._model[name]]
        copied = memo.setdefault(id(of._shared[of._model[name]].tensor), shared.tensor)
        if copied is not shared.tensor:
            copied.data = shared.tensor.data
            dict.__setitem__(shared.place, shared.key, copied)
            del _owners[id(shared.tensor)]  # another tensor may get its id
            shared.tensor, shared.version = copied, copied._version
            _owners[id(copied)] = self

    @torch.inference_mode(False)
    def _share(self, p: Parameter) -> SharedWeight:
        same = next((other for other in self._shared if in_torch(other.name) == in_torch(p.name)), None)
        if same is not None:
            raise ModelError(f"{p!r} and {same!r} have the same name in PyTorch, {in_torch(p.name)!r}: rename one")
        tensor = torch.nn.Parameter(torch.from_numpy(p.host), requires_grad=p.trainable)
        _owners[id(tensor)] = self
        module = self._module()
        assert module is not None
        *scopes, name = p.name.split("/")
        if p.name == "_extra_state":
            raise ModelError(f"{p!r}: state dicts of a Module have its steps under this name; rename the parameter")
        way = []
        for scope in scopes:
            around = module._modules
            if scope not in around:
                around[scope] = Scope(self)
            module = around[scope]
            way.append((around, scope, module))
        place = module._parameters
        # As `register_parameter`, which takes no name that is an attribute, such as "loss", and none with a dot.
        dict.__setitem__(place, name, tensor)
        seen = tensor._version, p.version, p.trainable, tensor.data_ptr()
        return SharedWeight(p, tensor, p.host, place, way, name, *seen)


def in_torch(name: str) -> str:
    """A parameter's name in state dicts."""
    return name.replace("/", ".")


def _note_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Note at once what an optimizer has changed, for handles that know no tensors: a forward-only one beside, say."""
    whose: set[SharedWeights] = set()
    for group in optimizer.param_groups:
        for p in group["params"]:
            if (weights := _owners.get(id(p))) is not None:
                whose.add(weights)
                if p.grad is not None:  # fused operators, p.data and exchanges between ranks count up no versions
                    torch.autograd.graph.increment_version(p)
    for weights in whose:
        weights.synchronise(reading=True)


register_optimizer_step_post_hook(_note_step)
