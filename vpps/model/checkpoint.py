"""Checkpoints: safetensors files with weights, training state, step count, seed and a checksum; written atomically."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpps.errors import CheckpointError, ModelError, ShapeError
from vpps.files import HeaderError, read_header, replacing
from vpps.model.learned_policy import LearnedPolicy
from vpps.model.optim import OPTIMIZERS, OptimizerState
from vpps.model.state import AccumulatedGradients, Averages
from vpps.ops import Shape

if TYPE_CHECKING:
    from vpps.compiler.passes.cell_history import CellHistory
    from vpps.model.model import Model, Parameter

FORMAT = 1
_USER = "user."  # prefix of the user's own metadata
_WEIGHT = "weight/"
_MOMENT = "moment/"
_GRADIENT = "gradient/"  # accumulated gradients; for a table only the rows with a gradient
_GRADIENT_ROWS = "gradient_rows/"
_AVERAGE = "average/"
_AVERAGE_CURRENT = "average_current/"  # for a table: number of updates that each row's average includes
_DESCRIPTION = "vpps"
CHECKSUM = "vpps.crc32"  # safetensors files have no checksum of their own


HistoryReader = Callable[[Mapping[str, Any], "Mapping[str, Parameter | None]", "Sequence[Parameter]"], "CellHistory"]


def _no_history(raw: object, named: object, parameters: object) -> CellHistory:
    raise LookupError("no reader of cell histories is installed")


read_history: HistoryReader = _no_history
"""Callback that reads a file's cell history; `vpps/__init__.py` sets it, so that models do not depend on cells."""


def serialised(model: Model, path: Path) -> bytes:
    """Return the bytes of a file with the model; error messages name `path`."""
    model.pull_weights()
    tensors: dict[str, NDArray[Any]] = {f"{_WEIGHT}{p.name}": p.host for p in model}
    # A file with averages omits the training state, because that state belongs to the weights.
    state = model.optimizer_state if not model.is_averaged else None
    accumulated = model.accumulated if not model.is_averaged else None
    averages = model.averages if not model.is_averaged else None
    history = model.cell_history if not model.is_averaged else None
    learned = model.learned_policy if not model.is_averaged else None
    groups: dict[str, Mapping[str, NDArray[Any]]] = {}
    if state is not None:
        groups |= {f"{_MOMENT}{name}/": arrays for name, arrays in state.moments.items()}
    if accumulated is not None:
        groups |= {_GRADIENT: accumulated.gradients, _GRADIENT_ROWS: accumulated.rows}
    if averages is not None:
        groups |= {_AVERAGE: averages.values, _AVERAGE_CURRENT: averages.current}
    tensors |= {prefix + name: array for prefix, arrays in groups.items() for name, array in arrays.items()}
    for name, tensor in tensors.items():
        if not np.isfinite(tensor).all():
            raise CheckpointError(f"{path}: not written, because {name} holds NaN or infinity: the training diverged")
    description = {
        "format": FORMAT,
        "seed": model.seed,
        "step": model.step,
        "optimizer": state.optimizer if state is not None else None,
        "counts": state.counts if state is not None else {},
        "moments": {name: list(arrays) for name, arrays in state.moments.items()} if state is not None else {},
        "accumulated": {"calls": accumulated.calls, "gradients": list(accumulated.gradients)} if accumulated else None,
        "averages": vars(averages) | {"values": list(averages.values), "current": list(averages.current)}
        if averages
        else None,
        "history": history.as_json() if history is not None else None,
        "policy": learned.as_json() if learned is not None else None,
        "parameters": [{"name": p.name, "kind": _kind(p), "trainable": p.trainable} for p in model],
    }
    plain = json.dumps(description, default=lambda number: number.item())  # NumPy scalars
    metadata = {_DESCRIPTION: plain} | {_USER + k: v for k, v in model.metadata.items()}
    return in_safetensors(tensors, metadata, path)


def in_safetensors(tensors: dict[str, NDArray[Any]], metadata: Mapping[str, str], path: Path) -> bytes:
    """Return a file with a checksum; `path` is for errors."""
    from safetensors.numpy import save as serialise

    try:
        return serialise(tensors, sealed(tensors, metadata))
    except UnicodeEncodeError as error:
        raise CheckpointError(
            f"{path}: not written, because a name or the metadata is not valid Unicode ({error})"
        ) from None


def write(path: Path, data: bytes) -> None:
    """Write a file atomically: after a crash, the path holds either the old file or the complete new one."""
    try:
        with replacing(path) as scratch:
            scratch.write_bytes(data)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written ({error})") from error


def sealed(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata with a checksum of the file's whole contents."""
    kept = {k: v for k, v in metadata.items() if k != CHECKSUM}
    checksum = zlib.crc32(json.dumps(kept, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        checksum = zlib.crc32(f"{name} {tensor.dtype.str} {tensor.shape}".encode(), checksum)
        checksum = zlib.crc32(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data, checksum)
    return kept | {CHECKSUM: f"{checksum:08x}"}


def refuse_damaged(path: Path, metadata: Mapping[str, str], tensors: Mapping[str, NDArray[Any]]) -> None:
    """Raise CheckpointError if the checksum does not match the contents."""
    if sealed(tensors, metadata) != metadata:
        raise CheckpointError(f"{path}: damaged: the checksum does not match the contents")


@dataclass(frozen=True, slots=True)
class _Contents:
    """Checked contents of a checkpoint file."""

    description: dict[str, Any]
    metadata: dict[str, str]
    weights: dict[str, NDArray[np.float32]]
    state: OptimizerState | None
    accumulated: AccumulatedGradients | None
    averages: Averages | None
    policy: LearnedPolicy | None


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, NDArray[Any]]]:
    """Return the metadata and the tensors of a safetensors file, before `refuse_damaged`.

    Raises:
        CheckpointError: no such file, or a damaged one.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load as deserialise

    try:
        with open(path, "rb") as file:
            header, _ = read_header(file)  # rejects files that safetensors accepts or is slow to reject
            file.seek(0)
            data = file.read()  # not mmap: if the file is truncated meanwhile, the system kills the process
        raw: dict[str, str] = header.get("__metadata__", {})
        tensors: dict[str, Any] = {name: tensor.copy() for name, tensor in deserialise(data).items()}
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such checkpoint") from None
    except (SafetensorError, OSError, LookupError, TypeError, AttributeError, HeaderError) as error:
        # LookupError, TypeError, AttributeError: types that NumPy lacks.
        raise CheckpointError(f"{path}: damaged or not a safetensors file ({error})") from error
    return raw, tensors


def _read(path: Path) -> _Contents:
    raw, tensors = read_tensors(path)
    if _DESCRIPTION not in raw:
        raise CheckpointError(f"{path}: a safetensors file, but not a vpps checkpoint")
    try:
        description = json.loads(raw[_DESCRIPTION])
        if description["format"] != FORMAT:
            raise CheckpointError(
                f"{path}: written by another version of vpps (format {description['format']}, not {FORMAT})"
            )
        refuse_damaged(path, raw, tensors)
        weights = {p["name"]: _tensor(tensors, _WEIGHT + p["name"]) for p in description["parameters"]}
        for p in description["parameters"]:
            if p["kind"] not in ("parameter", "lookup") or type(p["trainable"]) is not bool:
                raise ValueError(p["name"])
        if len(weights) != len(description["parameters"]):
            raise ValueError("parameters")
        _int(description, "seed", None), _int(description, "step", 0)
        state = None
        if description["optimizer"] is not None:
            moments = {
                moment: {name: _tensor(tensors, f"{_MOMENT}{moment}/{name}", weights[name].shape) for name in names}
                for moment, names in description["moments"].items()
            }
            name = description["optimizer"]
            known = {rule.name: set(rule.moments) for rule in OPTIMIZERS}
            if not isinstance(name, str) or set(moments) != known.get(name, set(moments)):
                raise ValueError("optimizer")
            state = OptimizerState(name, moments, _counts(description, weights))
        accumulated = _accumulated(description.get("accumulated"), tensors, weights)
        averages = _averages(description.get("averages"), tensors, weights)
        learned = description.get("policy")
        policy = None if learned is None else LearnedPolicy.from_json(learned)
    except _UnusableError as error:
        raise CheckpointError(f"{path}: damaged: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        # OverflowError: infinite numbers. RecursionError: deeply nested JSON.
        raise CheckpointError(f"{path}: damaged: {error!r} is missing or wrong") from error
    user = {k[len(_USER) :]: v for k, v in raw.items() if k.startswith(_USER)}
    return _Contents(description, user, weights, state, accumulated, averages, policy)


class _UnusableError(ValueError):
    """An array has the wrong type, the wrong shape, or values that are not finite."""


def _int(description: Mapping[str, Any], name: str, least: int | None) -> int:
    """Return an int from the description; with `least`, a 64-bit int >= `least`. Raises KeyError, ValueError."""
    value = description[name]
    if type(value) is not int or (least is not None and not least <= value < 2**63):
        raise ValueError(name)
    return value


def _counts(description: Mapping[str, Any], names: Iterable[str]) -> dict[str, int]:
    """Return step counts by parameter; older files have one start, "since", for all. Raises KeyError, ValueError."""
    if "since" not in description:
        return {name: _int(description["counts"], name, 0) for name, _ in description["counts"].items()}
    count = description["step"] - _int(description, "since", 0)
    if count < 0:
        raise ValueError("since")
    return dict.fromkeys(names, count)


def _tensor(tensors: Mapping[str, Any], name: str, shape: Shape | None = None, dtype: type = np.float32) -> Any:
    """Return a tensor of finite numbers with that shape and type. Raises KeyError, _UnusableError."""
    found = tensors[name]
    if found.dtype != dtype or shape not in (None, found.shape) or not np.isfinite(found).all():
        raise _UnusableError(f"{name!r} is not a finite {np.dtype(dtype)} array, or has an inconsistent shape")
    return found


def _averages(
    description: Mapping[str, Any] | None, tensors: Mapping[str, Any], weights: Mapping[str, NDArray[np.float32]]
) -> Averages | None:
    """Return the moving averages, if the file holds any. Raises KeyError, ValueError or TypeError if damaged."""
    if description is None:
        return None
    found = Averages(float(description["decay"]), _int(description, "updates", 0))
    if not 0 <= found.decay < 1:
        raise ValueError("decay")
    for name in description["values"]:
        found.values[name] = _tensor(tensors, _AVERAGE + name, weights[name].shape)
    for name in description["current"]:
        current = _tensor(tensors, _AVERAGE_CURRENT + name, found.values[name].shape[:1], np.int64)
        if not ((current >= 0) & (current <= found.updates)).all():
            raise ValueError(_AVERAGE_CURRENT + name)
        found.current[name] = current
    return found


def _accumulated(
    description: Mapping[str, Any] | None, tensors: Mapping[str, Any], weights: Mapping[str, NDArray[np.float32]]
) -> AccumulatedGradients | None:
    """Return accumulated gradients, if the file holds any. Raises KeyError, ValueError or TypeError if damaged."""
    if description is None:
        return None
    found = AccumulatedGradients(_int(description, "calls", 0))
    for name in description["gradients"]:
        shape = weights[name].shape
        if _GRADIENT_ROWS + name in tensors:
            rows = _tensor(tensors, _GRADIENT_ROWS + name, dtype=np.int64)
            if rows.ndim != 1 or (np.diff(rows, prepend=-1) <= 0).any() or (rows >= shape[0]).any():
                raise ValueError(_GRADIENT_ROWS + name)
            found.rows[name], shape = rows, (len(rows), *shape[1:])
        found.gradients[name] = _tensor(tensors, _GRADIENT + name, shape)
    return found


def _kind(p: Parameter) -> str:
    """Return the parameter's kind as named in files: "parameter" or "lookup"."""
    return type(p).__name__.lower()


def refuse_others(path: Path, own: Set[str], found: Set[str], owner: str, remedy: str = "") -> None:
    """Raise CheckpointError if the names of parameters in a file differ from those of its owner, such as the model."""
    lacking = (("the file lacks", own - found), (f"the {owner} lacks", found - own))
    said = "; ".join(f"{whose} {', '.join(map(repr, sorted(which)))}" for whose, which in lacking if which)
    if said:
        raise CheckpointError(f"{path}: belongs to another {owner}: {said}{remedy}")


def refuse_shape(path: Path, name: str, found: Shape, own: Shape, owner: str) -> None:
    """Raise CheckpointError if a parameter has another shape in the file."""
    if found != own:
        raise CheckpointError(f"{path}: {name!r} has shape {found} in the file and {own} in the {owner}")


def restore(model: Model, path: Path, strict: bool) -> None:
    """Implement `Model.restore` for a checked path."""
    contents = _read(path)
    if strict:
        remedy = ". Use strict=False to take what both have"
        refuse_others(path, {p.name for p in model}, contents.weights.keys(), "model", remedy)
    shared = [p for p in model if p.name in contents.weights]
    for p in shared:
        refuse_shape(path, p.name, contents.weights[p.name].shape, p.shape, "model")
    kinds = {p["name"]: p["kind"] for p in contents.description["parameters"]}
    for p in shared if contents.accumulated is not None or contents.averages is not None else ():
        if kinds[p.name] != _kind(p):
            raise CheckpointError(
                f"{path}: {p.name!r} is a {kinds[p.name]} in the file and a {_kind(p)} in the model, and the two store "
                "gradients and averages differently; declare the same kind, or save inside model.averaged(), which "
                "writes weights alone"
            )
    history = _history(contents, model, path)
    model.pull_weights()
    for p in shared:
        p.host[...] = contents.weights[p.name]
        p.version += 1
    model.notice_changes()
    _adopt(model, contents, history)


def load(kind: type[Model], path: Path) -> Model:
    """Implement `Model.load` for a checked path."""
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
    """Return the file's history of trained cells, without the cells whose parameters this model lacks."""
    raw = contents.description.get("history")
    if raw is None:
        return None
    parameters = dict.fromkeys(contents.weights) | {p.name: p for p in model if p.name in contents.weights}
    try:
        return read_history(raw, parameters, list(model))
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: damaged: its history of trained cells is invalid ({error!r})") from error


def _adopt(model: Model, contents: _Contents, history: CellHistory | None) -> None:
    model._seed = contents.description["seed"]
    model._step = contents.description["step"]
    model.metadata = contents.metadata
    model.optimizer_state = contents.state
    model.accumulated = contents.accumulated
    model.cell_history = history
    model.learned_policy = contents.policy
    if contents.averages is not None:
        model.averages = contents.averages
    elif model.averages is not None:  # restart them from the file's weights
        model.averages = Averages(model.averages.decay)
    model.state_version += 1
