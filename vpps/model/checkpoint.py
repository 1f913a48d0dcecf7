"""Checkpoints: safetensors files with weights, the state of training, step count and seed. Atomic, with a checksum."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpps.errors import CheckpointError, ModelError, ShapeError
from vpps.files import replacing
from vpps.model.optim import OPTIMIZERS, OptimizerState
from vpps.model.state import AccumulatedGradients, Averages

if TYPE_CHECKING:
    from vpps.compiler.passes.cell_history import CellHistory
    from vpps.model.model import Model, Parameter

FORMAT = 1
_USER = "user."  # prefix of the user's own metadata
_WEIGHT = "weight/"
_MOMENT = "moment/"
_GRADIENT = "gradient/"  # of accumulated calls; of a table only some rows
_GRADIENT_ROWS = "gradient_rows/"
_AVERAGE = "average/"
_AVERAGE_CURRENT = "average_current/"  # of a table: updates that each row's average includes
_DESCRIPTION = "vpps"
_CHECKSUM = "vpps.crc32"  # safetensors has none


HistoryReader = Callable[[Mapping[str, Any], "Mapping[str, Parameter | None]", "Sequence[Parameter]"], "CellHistory"]


def _no_history(raw: object, named: object, parameters: object) -> CellHistory:
    raise LookupError("nothing here knows cells")


read_history: HistoryReader = _no_history
"""Makes the cells of a file, of which a model knows nothing; `vpps.compiler.passes.stacking` puts its own here."""


def save(model: Model, path: Path) -> None:
    """Write the model; a crash at any point leaves the old file or the new one, never a part."""
    from safetensors.numpy import save as serialise

    model.pull_weights()
    tensors: dict[str, NDArray[Any]] = {f"{_WEIGHT}{p.name}": p.host for p in model}
    # The averages are to be evaluated or trained on from, not to be gone on with as if they had been the weights.
    state = model.optimizer_state if not model.is_averaged else None
    accumulated = model.accumulated if not model.is_averaged else None
    averages = model.averages if not model.is_averaged else None
    history = model.cell_history if not model.is_averaged else None
    if state is not None:
        for name, arrays in state.moments.items():
            tensors |= {f"{_MOMENT}{name}/{k}": v for k, v in arrays.items()}
    if accumulated is not None:
        tensors |= {f"{_GRADIENT}{k}": v for k, v in accumulated.gradients.items()}
        tensors |= {f"{_GRADIENT_ROWS}{k}": v for k, v in accumulated.rows.items()}
    if averages is not None:
        tensors |= {f"{_AVERAGE}{k}": v for k, v in averages.values.items()}
        tensors |= {f"{_AVERAGE_CURRENT}{k}": v for k, v in averages.current.items()}
    for name, tensor in tensors.items():
        if not np.isfinite(tensor).all():
            raise CheckpointError(f"{path}: not written, because {name} holds NaN or infinity: the training diverged")
    description = {
        "format": FORMAT,
        "seed": model.seed,
        "step": model.step,
        "optimizer": state.optimizer if state is not None else None,
        "since": state.since if state is not None else 0,
        "moments": {name: list(arrays) for name, arrays in state.moments.items()} if state is not None else {},
        "accumulated": {"calls": accumulated.calls, "gradients": list(accumulated.gradients)} if accumulated else None,
        "averages": {
            "decay": averages.decay,
            "updates": averages.updates,
            "values": list(averages.values),
            "current": list(averages.current),
        }
        if averages
        else None,
        "history": history.as_json() if history is not None else None,
        "parameters": [{"name": p.name, "kind": type(p).__name__.lower(), "trainable": p.trainable} for p in model],
    }
    metadata = {_DESCRIPTION: json.dumps(description, default=_plain)} | {
        _USER + k: v for k, v in model.metadata.items()
    }
    try:
        data = serialise(tensors, sealed(tensors, metadata))
    except UnicodeEncodeError as error:
        raise CheckpointError(
            f"{path}: not written, because a name or the metadata is no Unicode text ({error})"
        ) from None
    try:
        with replacing(path) as scratch:
            scratch.write_bytes(data)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written ({error})") from error


def _plain(number: np.generic) -> Any:
    """A number of NumPy's, as one of Python's."""
    return number.item()


def sealed(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> dict[str, str]:
    """The metadata with a checksum of everything that the file holds."""
    kept = {k: v for k, v in metadata.items() if k != _CHECKSUM}
    checksum = zlib.crc32(json.dumps(kept, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        checksum = zlib.crc32(f"{name} {tensor.dtype.str} {tensor.shape}".encode(), checksum)
        checksum = zlib.crc32(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data, checksum)
    return kept | {_CHECKSUM: f"{checksum:08x}"}


@dataclass(frozen=True, slots=True)
class _Contents:
    """A checkpoint, read and checked."""

    description: dict[str, Any]
    metadata: dict[str, str]
    weights: dict[str, NDArray[np.float32]]
    state: OptimizerState | None
    accumulated: AccumulatedGradients | None
    averages: Averages | None


def _read(path: Path) -> _Contents:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as f:
            raw: dict[str, str] = f.metadata() or {}
            tensors: dict[str, Any] = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118 - safe_open is no dict
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such checkpoint") from None
    except (SafetensorError, OSError, TypeError, AttributeError) as error:  # the last two: types that NumPy has not
        raise CheckpointError(f"{path}: damaged or no safetensors file ({error})") from error
    if _DESCRIPTION not in raw:
        raise CheckpointError(f"{path}: no vpps checkpoint, but another safetensors file")
    try:
        description = json.loads(raw[_DESCRIPTION])
        if description["format"] != FORMAT:
            raise CheckpointError(
                f"{path}: written by another version of vpps (format {description['format']}, not {FORMAT})"
            )
        if sealed(tensors, raw) != raw:
            raise CheckpointError(f"{path}: damaged: the checksum differs from that of its contents")
        weights = {p["name"]: tensors[_WEIGHT + p["name"]] for p in description["parameters"]}
        for p in description["parameters"]:
            if p["kind"] not in ("parameter", "lookup") or type(p["trainable"]) is not bool:
                raise ValueError(p["name"])
        if len(weights) != len(description["parameters"]):
            raise ValueError("parameters")
        _int(description, "seed", None), _int(description, "step", 0)
        state = None
        if description["optimizer"] is not None:
            moments = {m: {n: tensors[f"{_MOMENT}{m}/{n}"] for n in ns} for m, ns in description["moments"].items()}
            name = description["optimizer"]
            known = {rule.name: set(rule.moments) for rule in OPTIMIZERS}
            if not isinstance(name, str) or set(moments) != known.get(name, set(moments)):
                raise ValueError("optimizer")
            state = OptimizerState(name, moments, _int(description, "since", 0))
            if state.since > description["step"]:
                raise ValueError("since")
        accumulated = _accumulated(description.get("accumulated"), tensors, weights)
        averages = _averages(description.get("averages"), tensors, weights)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        # The last two: numbers that are infinite, deep JSON.
        raise CheckpointError(f"{path}: damaged: {error!r} is missing or wrong") from error
    for arrays in (weights, *(state.moments.values() if state is not None else ())):
        for name, x in arrays.items():
            if x.dtype != np.float32 or not np.isfinite(x).all() or x.shape != weights[name].shape:
                raise CheckpointError(f"{path}: damaged: {name!r} is not of finite float32, or not of one shape")
    user = {k[len(_USER) :]: v for k, v in raw.items() if k.startswith(_USER)}
    return _Contents(description, user, weights, state, accumulated, averages)


def _int(description: Mapping[str, Any], name: str, least: int | None) -> int:
    """An int of the description, from `least` on of 64 bits. Raises KeyError, ValueError."""
    value = description[name]
    if type(value) is not int or (least is not None and not least <= value < 2**63):
        raise ValueError(name)
    return value


def _averages(
    description: Mapping[str, Any] | None, tensors: Mapping[str, Any], weights: Mapping[str, NDArray[np.float32]]
) -> Averages | None:
    """Moving averages, if the file holds any. Raises KeyError, ValueError, TypeError for what is none."""
    if description is None:
        return None
    found = Averages(float(description["decay"]), _int(description, "updates", 0))
    if not 0 <= found.decay < 1:
        raise ValueError("decay")
    for name in description["values"]:
        value = found.values[name] = tensors[_AVERAGE + name]
        if value.dtype != np.float32 or value.shape != weights[name].shape or not np.isfinite(value).all():
            raise ValueError(_AVERAGE + name)
    for name in description["current"]:
        current = found.current[name] = tensors[_AVERAGE_CURRENT + name]
        if current.dtype != np.int64 or current.shape != found.values[name].shape[:1]:
            raise ValueError(_AVERAGE_CURRENT + name)
        if not ((current >= 0) & (current <= found.updates)).all():
            raise ValueError(_AVERAGE_CURRENT + name)
    return found


def _accumulated(
    description: Mapping[str, Any] | None, tensors: Mapping[str, Any], weights: Mapping[str, NDArray[np.float32]]
) -> AccumulatedGradients | None:
    """Accumulated gradients, if the file holds any. Raises KeyError, ValueError, TypeError for what is none."""
    if description is None:
        return None
    found = AccumulatedGradients(_int(description, "calls", 0))
    for name in description["gradients"]:
        gradient, rows, shape = tensors[_GRADIENT + name], tensors.get(_GRADIENT_ROWS + name), weights[name].shape
        if rows is not None:
            in_order = rows.dtype == np.int64 and (np.diff(rows) > 0).all() and (rows[:1] >= 0).all()
            if rows.ndim != 1 or not in_order or not (rows < shape[0]).all():
                raise ValueError(_GRADIENT_ROWS + name)
            found.rows[name], shape = rows, (len(rows), *shape[1:])
        if gradient.dtype != np.float32 or gradient.shape != shape or not np.isfinite(gradient).all():
            raise ValueError(_GRADIENT + name)
        found.gradients[name] = gradient
    return found


def restore(model: Model, path: Path, strict: bool) -> None:
    """See `Model.restore`."""
    contents = _read(path)
    names = {p.name for p in model}
    if strict and names != set(contents.weights):
        missing = sorted(names - set(contents.weights))
        surplus = sorted(set(contents.weights) - names)
        raise CheckpointError(
            f"{path}: belongs to another model: "
            + "; ".join(
                f"{what} {', '.join(map(repr, which))}"
                for what, which in (("the file lacks", missing), ("the model lacks", surplus))
                if which
            )
            + ". Use strict=False to take what both have"
        )
    shared = [p for p in model if p.name in contents.weights]
    for p in shared:
        if contents.weights[p.name].shape != p.shape:
            raise CheckpointError(
                f"{path}: {p.name!r} has shape {contents.weights[p.name].shape} in the file and {p.shape} in the model"
            )
    history = _history(contents, model, path)
    model.pull_weights()
    for p in shared:
        p.host = contents.weights[p.name].copy()
        p.version += 1
    _adopt(model, contents, history)


def load(kind: type[Model], path: Path) -> Model:
    """See `Model.load`."""
    contents = _read(path)
    model = kind(seed=contents.description["seed"])
    for p in contents.description["parameters"]:
        value = contents.weights[p["name"]]
        declare = model.lookup if p["kind"] == "lookup" else model.parameter
        try:
            declare(p["name"], value.shape, init=value, trainable=p["trainable"])
        except (ModelError, ShapeError) as error:
            raise CheckpointError(f"{path}: damaged: {error}") from error
    _adopt(model, contents, _history(contents, model, path))
    return model


def _history(contents: _Contents, model: Model, path: Path) -> CellHistory | None:
    """The cells that the model of a file was trained with; without those of parameters that this one lacks."""
    raw = contents.description.get("history")
    if raw is None:
        return None
    parameters = dict.fromkeys(contents.weights) | {p.name: p for p in model if p.name in contents.weights}
    try:
        return read_history(raw, parameters, list(model))
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: damaged: the cells that it was trained with are wrong ({error!r})") from error


def _adopt(model: Model, contents: _Contents, history: CellHistory | None) -> None:
    model.seed = contents.description["seed"]
    model.step = contents.description["step"]
    model.metadata = contents.metadata
    model.optimizer_state = contents.state
    model.accumulated = contents.accumulated
    model.cell_history = history
    if contents.averages is not None:
        model.averages = contents.averages
    elif model.averages is not None:  # they begin anew, with the weights of the file
        model.averages = Averages(model.averages.decay)
    model.state_version += 1
