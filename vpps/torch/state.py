"""Extra state of a module in its state dict: a `torch.save` file as a tensor of bytes. Like other tensors, it can be
cloned, moved and written as safetensors."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from io import BytesIO
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vpps.errors import ModelError
from vpps.model.model import Lookup, Model
from vpps.model.optim import OPTIMIZERS, Optimizer, OptimizerState
from vpps.model.state import Averages

_SQUARES = ("v",)
"""Names of the moments that are means or sums of squares."""

_DAMAGED = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, RecursionError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip
"""Errors from damaged or hostile files."""


def extra_state(model: Model, drawn: tuple[int, int], updates: bool) -> Any:
    """Return the numbers that determine the next forward's dropout masks; also moments and averages if vpps updates.

    Args:
        model: model with its newest weights.
        drawn: a step, and the number of training forwards since then.
    """
    extra: dict[str, Any] = {"step": model.step, "drawn": drawn}
    state, averages = model.optimizer_state, model.averages
    if updates and state is not None:
        moments = {moment: _tensors(arrays) for moment, arrays in state.moments.items()}
        extra["optimizer"] = {"name": state.optimizer, "counts": state.counts, "moments": moments}
    if updates and averages is not None:
        numbers = {"decay": averages.decay, "updates": averages.updates}
        extra["averages"] = numbers | {"values": _tensors(averages.values), "current": _tensors(averages.current)}
    file = BytesIO()
    torch.save(extra, file)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def copied_model(model: Model) -> Model:
    """Return an independent copy of a model, with its parameters, weights and training state.

    Args:
        model: model with its newest weights.
    """
    copied = Model(seed=model.seed)
    for p in model:
        declare = copied.lookup if isinstance(p, Lookup) else copied.parameter
        declare(p.name, p.shape, init=p.host.copy(), trainable=p.trainable)
    copied.step, copied.metadata = model.step, dict(model.metadata)
    copied.optimizer_state = copy.deepcopy(model.optimizer_state)
    copied.accumulated, copied.averages = copy.deepcopy(model.accumulated), copy.deepcopy(model.averages)
    return copied


def adopt_extra_state(model: Model, given: Any, rule: Optimizer | None) -> tuple[int, int]:
    """Restore a result of `extra_state`, so that training continues from it. Returns `drawn`.

    Args:
        rule: vpps optimizer that updates the weights; None if PyTorch updates them.

    Raises:
        ModelError: the state belongs to another model, or its moments to another optimizer.
    """
    updates = rule is not None
    try:
        extra = torch.load(BytesIO(given.cpu().numpy().tobytes()), map_location="cpu", weights_only=True)
        step, (of, draws) = _count(extra["step"]), extra["drawn"]
        drawn, state, averages = (_count(of), _count(draws)), None, None
        if updates and "optimizer" in extra:
            kept = extra["optimizer"]
            if "since" in kept:  # an older version, with one count for all parameters
                counts = {p.name: step - _count(kept["since"]) for p in model}
            else:
                counts = {str(name): n for name, n in kept["counts"].items()}
            if any(_count(n) > step for n in counts.values()):
                raise ValueError(f"a parameter has more steps than the model's {step}")
            state = OptimizerState(str(kept["name"]), {}, counts)
            for moment, arrays in kept["moments"].items():
                state.moments[str(moment)] = found = _arrays(model, arrays)
                if moment in _SQUARES and any((array < 0).any() for array in found.values()):
                    raise ValueError(f"a mean of squares, {moment!r}, is negative")
            known = {each.name: set(each.moments) for each in OPTIMIZERS}
            if known.get(state.optimizer) != set(state.moments):
                raise ValueError(f"moments {list(state.moments)} of {state.optimizer!r}")
        if updates and "averages" in extra:
            kept = extra["averages"]
            averages = Averages(float(kept["decay"]), _count(kept["updates"]), _arrays(model, kept["values"]))
            if not 0 <= averages.decay < 1:
                raise ValueError(f"averages with a decay of {averages.decay}")
            averages.current = _rows_current(averages, model, kept["current"])
    except (*_DAMAGED, UnpicklingError) as error:
        raise ModelError(f"load_state_dict: not the extra state of a Module of this model: {error!r}") from error
    if rule is not None and state is not None and state.optimizer != rule.name:
        raise ModelError(
            f"load_state_dict: moments are of {state.optimizer!r}, and this Module updates by {rule.name!r}: make it "
            "with that optimizer, or remove '_extra_state' from the state dict to start with new moments"
        )
    model.pull_weights()
    model.step = step
    if updates:
        model.optimizer_state, model.averages = state, averages
        model.state_version += 1
    return drawn


def _tensors(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _count(value: Any) -> int:
    """Return a 64-bit int >= 0. Raises ValueError."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is not a valid count")
    return value


def _arrays(model: Model, tensors: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
    """Return arrays by parameter, without those of parameters that the model no longer has. Raises ValueError."""
    found = {}
    for name, tensor in tensors.items():
        if name in model:
            if tuple(tensor.shape) != model[name].shape:
                raise ValueError(f"{name!r} has shape {tuple(tensor.shape)}, not {model[name].shape}")
            if tensor.dtype != torch.float32 or not torch.isfinite(tensor).all():
                raise ValueError(f"{name!r} is not a finite float32 array")
            found[name] = tensor.numpy().copy()
    return found


def _rows_current(averages: Averages, model: Model, tensors: Mapping[str, Any]) -> dict[str, NDArray[np.int64]]:
    """Return the number of updates in each row's average, for all averaged tables. Raises ValueError."""
    found = {}
    for name in averages.values:
        if not isinstance(model[name], Lookup):
            continue
        rows = tensors[name]
        if rows.dtype != torch.int64 or tuple(rows.shape) != model[name].shape[:1]:
            raise ValueError(f"averages of the rows of {name!r}")
        found[name] = rows.numpy().copy()
        if not ((found[name] >= 0) & (found[name] <= averages.updates)).all():
            raise ValueError(f"averages of the rows of {name!r}")
    return found
