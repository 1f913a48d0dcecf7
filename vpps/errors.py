"""Every error that vpps raises on purpose. All derive from `VppsError` and are raised before anything runs.

A message names the user's expression (cell, op, shapes, call number), says what was wrong and what to do about it.
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
    """Operand shapes do not fit an operation."""


class DistributedError(VppsError):
    """Processes that train together cannot go on: one has failed, does not answer, or does something else."""


class DtypeError(VppsError, TypeError):
    """A value is not of a type that converts to float32 (or to int32 for indices) without loss."""


class IndexRangeError(VppsError, IndexError):
    """A lookup row, a label or an element index lies outside its range."""


class DivisionError(VppsError, ZeroDivisionError):
    """An expression is divided by the constant 0."""


class GraphError(VppsError):
    """A graph is put together wrongly: expressions of two graphs mixed, a loss that is no scalar, an empty graph."""


class NoGradientError(GraphError):
    """What is to be trained depends on no trainable parameter, and on no input that wants its gradient."""


class TraceError(VppsError):
    """A cell does something that its single trace cannot record (branches on values, closes over an expression)."""


class ModelError(VppsError):
    """A parameter is declared or assigned wrongly (duplicate name, non-finite weights, unknown name)."""


class HandleError(VppsError):
    """A Handle is used wrongly: after `close()`, in a forked child, or as a second training handle of one model."""


class CapacityError(VppsError):
    """A graph needs more memory than the pool may grow to, or something forced onto the chip more than there is."""


class CompileError(VppsError):
    """No usable compiler was found, or the kernel source did not compile."""


class SpillError(CompileError):
    """A kernel keeps weights in local memory instead of registers: it must hold fewer of them."""


class KernelError(VppsError):
    """A launch stopped before its end; the message names the instruction in the user's words."""


class ScriptError(VppsError):
    """The verifier found a script that breaks a rule of the virtual processors (a defect of the scheduler)."""


class NonFiniteError(VppsError, ArithmeticError):
    """The loss or gradients of a step were not finite and the handle was asked to raise; the step was left out."""


class CheckpointError(VppsError):
    """A checkpoint is damaged, or does not belong to this model."""


class DataError(VppsError, ValueError):
    """A data file is malformed; the message gives file, line, column and what was expected."""


class WorkloadError(VppsError):
    """What a command line names to be profiled or inspected is no task and no function that makes batches."""
