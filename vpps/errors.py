"""Errors that vpps raises on purpose. All derive from `VppsError`. Wrong calls are refused before anything runs.

A message names the user's expression (cell, op, shapes, call number), the problem and the remedy.
"""

from __future__ import annotations

__all__ = [
    "CapacityError",
    "CheckpointError",
    "CompileError",
    "DataError",
    "DistributedError",
    "DivisionError",
    "DtypeError",
    "GraphError",
    "HandleError",
    "IndexRangeError",
    "KernelError",
    "ModelError",
    "NoGradientError",
    "NonFiniteError",
    "ScriptError",
    "ShapeError",
    "SpillError",
    "TraceError",
    "VppsError",
    "WorkloadError",
]


class VppsError(Exception):
    """Base class of all errors raised by vpps."""


class ShapeError(VppsError, ValueError):
    """The shapes of the operands do not fit the operation."""


class DistributedError(VppsError):
    """Processes that train together cannot continue: one of them failed, does not respond, or makes different calls."""


class DtypeError(VppsError, TypeError):
    """A value's type cannot be converted to float32 (or to int32 for indices) without loss."""


class IndexRangeError(VppsError, IndexError):
    """A lookup row, a label or an element index is out of range."""


class DivisionError(VppsError, ZeroDivisionError):
    """An expression is divided by the constant 0."""


class GraphError(VppsError):
    """A graph is malformed: it mixes expressions of two graphs, its loss is not a scalar, or it is empty."""


class NoGradientError(GraphError):
    """The loss depends on no trainable parameter and on no input with grad=True."""


class TraceError(VppsError):
    """A cell does something that a single trace cannot record: it branches on values or closes over an expression."""


class ModelError(VppsError):
    """A parameter is declared or assigned wrongly: duplicate name, non-finite weights, or unknown name."""


class HandleError(VppsError):
    """A Handle is used wrongly: after `close()`, in a forked child, or as a model's second training handle."""


class CapacityError(VppsError):
    """A graph needs more memory than the pool may grow to, or the user forces more onto the chip than fits there."""


class CompileError(VppsError):
    """No usable compiler was found, or the kernel source did not compile."""


class SpillError(CompileError):
    """The compiler spilled a kernel's weights from registers to local memory: the kernel must hold fewer of them."""


class KernelError(VppsError):
    """A launch stopped before its end. The message names the instruction in the user's terms."""


class ScriptError(VppsError):
    """The verifier found a script that breaks a rule of the virtual processors (a defect of the scheduler)."""


class NonFiniteError(VppsError, ArithmeticError):
    """The loss or the gradients of a step were not finite, and on_nonfinite='raise'. The step was skipped."""


class CheckpointError(VppsError):
    """A checkpoint is damaged, or does not belong to this model."""


class DataError(VppsError, ValueError):
    """A data file is malformed. The message gives the file, line and column, and the expected content."""


class WorkloadError(VppsError):
    """A command line names something to profile or inspect that is neither a task nor a function that makes batches."""
