"""What the state dict of a module holds beside weights: a file of `torch.save` as a tensor of bytes, which may be
cloned, moved and written as safetensors like the others."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vpps.errors import ModelError
from vpps.model.model import Model
from vpps.model.optim import Optimizer, OptimizerState
from vpps.model.state import Averages


def extra_state(model: Model, drawn: tuple[int, int], updates: bool) -> Any:
    """What the next forward's masks of dropout follow from; moments and averages, where vpps updates.

    Args:
        model: with its newest weights.
        drawn: a step, and how many training forwards there were since.
    """
    extra: dict[str, Any] = {"step": model.step, "drawn": drawn}
    state, averages = model.optimizer_state, model.averages
    if updates and state is not None:
        moments = {moment: _tensors(arrays) for moment, arrays in state.moments.items()}
        extra["optimizer"] = {"name": state.optimizer, "since": state.since, "moments": moments}
    if updates and averages is not None:
        numbers = {"decay": averages.decay, "updates": averages.updates}
        extra["averages"] = numbers | {"values": _tensors(averages.values), "current": _tensors(averages.current)}
    file = BytesIO()
    torch.save(extra, file)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def adopt_extra_state(model: Model, given: Any, rule: Optimizer | None) -> tuple[int, int]:
    """The reverse: training goes on from there. Returns `drawn`.

    Args:
        rule: by which vpps updates; None: PyTorch does.

    Raises:
        ModelError: it is not of this model, or moments are of another optimizer.
    """
    updates = rule is not None
    try:
        extra = torch.load(BytesIO(given.cpu().numpy().tobytes()), map_location="cpu", weights_only=True)
        step, (of, draws) = int(extra["step"]), extra["drawn"]
        drawn, state, averages = (int(of), int(draws)), None, None
        if updates and "optimizer" in extra:
            kept = extra["optimizer"]
            moments = {moment: _arrays(model, arrays) for moment, arrays in kept["moments"].items()}
            state = OptimizerState(str(kept["name"]), moments, int(kept["since"]))
        if updates and "averages" in extra:
            kept = extra["averages"]
            averages = Averages(float(kept["decay"]), int(kept["updates"]), _arrays(model, kept["values"]))
            averages.current = {name: rows.numpy().copy() for name, rows in kept["current"].items()}
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError, UnpicklingError, EOFError) as error:
        raise ModelError(f"load_state_dict: not the extra state of a Module of this model: {error!r}") from error
    if rule is not None and state is not None and state.optimizer != rule.name:
        raise ModelError(
            f"load_state_dict: moments are of {state.optimizer!r}, and this Module updates by {rule.name!r}: make it "
            "with that optimizer, or leave '_extra_state' out of the state dict, to begin with new moments"
        )
    model.pull_weights()
    model.step = step
    if updates:
        model.optimizer_state, model.averages = state, averages
        model.state_version += 1
    return drawn


def _tensors(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _arrays(model: Model, tensors: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
    """Copies of what is kept by parameter; what the model no longer has is left out."""
    found = {}
    for name, tensor in tensors.items():
        if name in model:
            if tuple(tensor.shape) != model[name].shape:
                raise ValueError(f"{name!r} has shape {tuple(tensor.shape)}, not {model[name].shape}")
            found[name] = tensor.to("cpu", torch.float32).numpy().copy()
    return found
