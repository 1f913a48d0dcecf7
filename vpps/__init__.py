"""vpps: dynamic neural networks trained with one kernel launch per mini-batch."""

from importlib import import_module
from typing import TYPE_CHECKING

from vpps import config, init
from vpps import errors as _errors
from vpps._version import __version__ as __version__
from vpps.compiler.passes import Passes
from vpps.errors import *
from vpps.graph import functions as _functions
from vpps.graph import primitives as _primitives
from vpps.graph.functions import *
from vpps.graph.graph import Graph
from vpps.graph.primitives import *
from vpps.hints import missing_from as _missing_from
from vpps.model import checkpoint
from vpps.model import optim as _optim
from vpps.model.model import Lookup, Model, Parameter
from vpps.model.optim import *
from vpps.ops.operand import Expression
from vpps.placement.onchip import ChipOptions
from vpps.record.cell import Cell, cell
from vpps.record.rows import Rows
from vpps.record.vertex import gather, pull, push, scatter
from vpps.targets import Hook as _Hook

if TYPE_CHECKING:
    from vpps import callbacks as callbacks
    from vpps import data as data
    from vpps import distributed as distributed
    from vpps import nn as nn
    from vpps import reference as reference
    from vpps import report as report
    from vpps import torch as torch
    from vpps import zoo as zoo
    from vpps.engine.ahead import Specialized, specialize
    from vpps.engine.gradients import RowGradients
    from vpps.engine.timeline import Timeline
    from vpps.model.learned_policy import LearnedPolicy
    from vpps.nn.export import export_onnx
    from vpps.planner.policies import learn_policy
    from vpps.session.handle import Handle
    from vpps.zoo.pretrained import Pretrained

config.start_logging()
checkpoint.read_history = _Hook("vpps.compiler.passes.stacking:read_history")  # vpps.model cannot import it

_SUBMODULES = ("callbacks", "data", "distributed", "nn", "reference", "report", "torch", "zoo")
_PLACES = {
    "Handle": "vpps.session.handle",
    "LearnedPolicy": "vpps.model.learned_policy",
    "Pretrained": "vpps.zoo.pretrained",
    "RowGradients": "vpps.engine.gradients",
    "Specialized": "vpps.engine.ahead",
    "Timeline": "vpps.engine.timeline",
    "export_onnx": "vpps.nn.export",
    "learn_policy": "vpps.planner.policies",
    "specialize": "vpps.engine.ahead",
}


def _import_late(name: str) -> object:
    """Import a name on first use: these names account for half of the import time, and a program may not need them."""
    if name in _SUBMODULES:
        return import_module(f"vpps.{name}")
    if name in _PLACES:
        found = globals()[name] = getattr(import_module(_PLACES[name]), name)
        return found
    raise _missing_from("vpps", name)


if not TYPE_CHECKING:  # a type checker that sees `__getattr__` accepts every name
    __getattr__ = _import_late


def __dir__() -> list[str]:
    """List the public names: `import vpps` also makes internal packages attributes."""
    return sorted({*__all__, *_SUBMODULES, "__version__", "errors"})


__all__ = [
    "Cell",
    "ChipOptions",
    "Expression",
    "Graph",
    "Handle",
    "LearnedPolicy",
    "Lookup",
    "Model",
    "Parameter",
    "Passes",
    "Pretrained",
    "RowGradients",
    "Rows",
    "Specialized",
    "Timeline",
    "cell",
    "export_onnx",
    "gather",
    "init",
    "learn_policy",
    "pull",
    "push",
    "scatter",
    "specialize",
]
__all__ += _errors.__all__
__all__ += _functions.__all__
__all__ += _optim.__all__
__all__ += _primitives.__all__
