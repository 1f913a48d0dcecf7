"""Stand-in for PyTorch in dry runs. It answers as PyTorch with a GPU would, until the first call that needs a device,
which raises an error."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

__version__ = "0 (stands in)"


class Tensor:
    """Exists for annotations only."""


class device:
    """A device, identified by name."""

    def __init__(self, type: str) -> None:
        self.type = type


def tensor(data: Any, *, device: Any) -> NoReturn:
    """Raise: this is each program's first call on a GPU."""
    raise RuntimeError(f"this needs a device: torch.tensor(..., device={device.type!r})")


def no_grad() -> Any:
    """Return a decorator for functions that are never called here."""
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
