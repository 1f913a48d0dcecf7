"""Stands in for PyTorch where programs are run dry: up to the first call that needs a device, and that call
says so. What they ask before, it answers as PyTorch does that sees a GPU."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

__version__ = "0 (stands in)"


class Tensor:
    """For annotations."""


class device:
    """A device by name."""

    def __init__(self, type: str) -> None:
        self.type = type


def tensor(data: Any, *, device: Any) -> NoReturn:
    """The first thing that each of the programs does on a GPU."""
    raise RuntimeError(f"this needs a device: torch.tensor(..., device={device.type!r})")


def no_grad() -> Any:
    """As a decorator of functions that nobody calls here."""
    return lambda function: function


def _module(name: str, **names: Any) -> Any:
    module = ModuleType(name)
    module.__dict__.update(names)
    sys.modules[name] = module
    return module


backends = SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace()), cudnn=SimpleNamespace(version=lambda: 0))
version = SimpleNamespace(cuda="0")
_properties = SimpleNamespace(name="Imaginary 1", major=9, minor=0, multi_processor_count=8)
cuda = SimpleNamespace(
    is_available=lambda: True, graph_pool_handle=lambda: None, get_device_properties=lambda number: _properties
)
_rnn = _module("torch.nn.utils.rnn", PackedSequence=object)
nn = _module(
    "torch.nn", functional=_module("torch.nn.functional"), utils=_module("torch.nn.utils", rnn=_rnn), Module=object
)
