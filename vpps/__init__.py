"""vpps: dynamic neural networks trained with one kernel launch per mini-batch."""

__version__ = "0.1.0"

from vpps import config, init
from vpps.ahead import Specialized, specialize
from vpps.errors import (
    CapacityError,
    CheckpointError,
    CompileError,
    DataError,
    DivisionError,
    DtypeError,
    GraphError,
    HandleError,
    IndexRangeError,
    KernelError,
    ModelError,
    NonFiniteError,
    ScriptError,
    ShapeError,
    SpillError,
    TraceError,
    VppsError,
    WorkloadError,
)
from vpps.graph.cell import Cell, cell
from vpps.graph.functions import (
    abs,
    argmax,
    binary_cross_entropy_with_logits,
    clamp,
    concat,
    cosine,
    cross_entropy,
    dot,
    dropout,
    each,
    elu,
    exp,
    gelu,
    hinge,
    kl_div,
    layer_norm,
    leaky_relu,
    log,
    log_softmax,
    logsumexp,
    lookup,
    max,
    maximum,
    mean,
    min,
    minimum,
    mse,
    pick,
    relu,
    sigmoid,
    softmax,
    softplus,
    split,
    sqrt,
    square,
    squared_distance,
    stop_gradient,
    sum,
    tanh,
)
from vpps.graph.graph import Graph
from vpps.graph.matrices import bilinear, outer, reshape, transpose
from vpps.graph.operand import Expression
from vpps.graph.rows import Rows
from vpps.graph.vertex import gather, pull, push, scatter
from vpps.handle import Handle
from vpps.inspection.timeline import Timeline
from vpps.model import Lookup, Model, Parameter
from vpps.optim import SGD, Adagrad, Adam, AdamW, Momentum, Nesterov, Optimizer, RMSprop
from vpps.plan.onchip import ChipOptions
from vpps.plan.passes import Passes

config.start_logging()

_SUBMODULES = ("data", "nn", "reference", "zoo")


def __getattr__(name: str) -> object:
    """Submodules that a program may not need are imported when they are first used."""
    if name in _SUBMODULES:
        import importlib

        return importlib.import_module(f"vpps.{name}")
    raise AttributeError(f"module 'vpps' has no attribute {name!r}")


__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "CapacityError",
    "Cell",
    "CheckpointError",
    "ChipOptions",
    "CompileError",
    "DataError",
    "DivisionError",
    "DtypeError",
    "Expression",
    "Graph",
    "GraphError",
    "Handle",
    "HandleError",
    "IndexRangeError",
    "KernelError",
    "Lookup",
    "Model",
    "ModelError",
    "Momentum",
    "Nesterov",
    "NonFiniteError",
    "Optimizer",
    "Parameter",
    "Passes",
    "RMSprop",
    "Rows",
    "ScriptError",
    "ShapeError",
    "Specialized",
    "SpillError",
    "Timeline",
    "TraceError",
    "VppsError",
    "WorkloadError",
    "abs",
    "argmax",
    "bilinear",
    "binary_cross_entropy_with_logits",
    "cell",
    "clamp",
    "concat",
    "cosine",
    "cross_entropy",
    "dot",
    "dropout",
    "each",
    "elu",
    "exp",
    "gather",
    "gelu",
    "hinge",
    "init",
    "kl_div",
    "layer_norm",
    "leaky_relu",
    "log",
    "log_softmax",
    "logsumexp",
    "lookup",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mse",
    "outer",
    "pick",
    "pull",
    "push",
    "relu",
    "reshape",
    "scatter",
    "sigmoid",
    "softmax",
    "softplus",
    "specialize",
    "split",
    "sqrt",
    "square",
    "squared_distance",
    "stop_gradient",
    "sum",
    "tanh",
    "transpose",
]
