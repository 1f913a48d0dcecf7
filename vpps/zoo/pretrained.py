"""Networks in folders: constructor arguments, weights, and the names of words and classes."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from vpps._version import __version__
from vpps.data import GraphSet
from vpps.errors import CheckpointError, VppsError
from vpps.model import checkpoint
from vpps.model.model import Model, Parameter, refuse_nonfinite
from vpps.values import as_path
from vpps.zoo.names import names_of, set_kept

FORMAT = 1
CONFIG, WEIGHTS, NAMES = "config.json", "model.safetensors", "names.json"

Like = GraphSet | Mapping[str, GraphSet]


class Pretrained:
    """Base class of networks that can be saved to a folder: those of `vpps.zoo`, and your own.

    The constructor takes a `vpps.Model` and declares parameters in it. Its other arguments are numbers, strings, bools,
    None, or lists, tuples and dicts of these; tuples come back as lists. Nothing else has to be declared: the folder
    gets the arguments of the call that made the network.

    Attributes:
        model: the Model that the constructor was given.
        like: the set of graphs, or the sets by name, that `save_pretrained` was given; None without.

    Example:
        >>> class Scorer(vpps.Pretrained):
        ...     def __init__(self, model: vpps.Model, n_words: int, *, hidden: int = 8) -> None:
        ...         self.words = vpps.nn.Embedding(model, n_words, hidden)
        ...         self.output = vpps.nn.Linear(model, hidden, 1)
        >>> Scorer(vpps.Model(seed=1), 100, hidden=4).save_pretrained("scorer")  # doctest: +SKIP
        >>> scorer = Scorer.from_pretrained("scorer")  # doctest: +SKIP
        >>> handle = vpps.Handle(scorer.model, train=False)  # doctest: +SKIP
    """

    model: Model
    like: Any = None
    _made_by: tuple[Model | None, tuple[Any, ...], dict[str, Any]]
    _scope: str

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        self = super().__new__(cls)
        model = next((x for x in (*arguments, *options.values()) if isinstance(x, Model)), None)
        if model is not None:
            self.model, self._scope = model, _scope_of(model)
        self._made_by = model, arguments, options
        return self

    def save_pretrained(self, folder: str | Path, *, like: Like | None = None) -> None:
        """Write config.json (class, version, constructor arguments) and model.safetensors (weights by name).

        The folder is created. Each file is replaced atomically, config.json last. The training state and the frozen
        flags are not written: `model.save` does that. Inside `with model.averaged()`, the averages are written.

        Args:
            like: a set of graphs, or several by name. The names of its words, classes and kinds go to names.json, so
                that readers give new data the same numbers: `vpps.data.read_treebank(path, like=network.like)`.
                Default: those of the folder that the network came from.

        Raises:
            CheckpointError: an argument of the constructor cannot be written, the constructor does not declare the same
                parameters again, or a file cannot be written.
            ModelError: a weight is NaN or infinite.
        """
        kind, what = type(self), f"{type(self).__name__}.save_pretrained"
        where = as_path(folder, what, CheckpointError)
        model, arguments, options = self._made_by
        if model is None:
            raise CheckpointError(f"{what}: its constructor was given no vpps.Model")
        like = self.like if like is None else like
        sets: Mapping[str, GraphSet] = {"": like} if isinstance(like, GraphSet) else like or {}
        kept = _arguments(kind, arguments, options)
        _, own = _made(kind, kept, Model(), what)  # what cannot be read is not written
        weights = model.numpy()
        tensors = {name: weights[self._scope + name] for name in own if self._scope + name in weights}
        _refuse_misfits(where / WEIGHTS, own, tensors)
        for name, array in tensors.items():
            refuse_nonfinite(array, f"{what}: {name!r}")
        description = {"format": FORMAT, "vpps": __version__, "class": _name(kind), "arguments": kept}
        try:
            where.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{where}: cannot be created ({error})") from error
        checkpoint.write(where / WEIGHTS, checkpoint.in_safetensors(tensors, {"format": "np"}, where / WEIGHTS))
        if sets:
            checkpoint.write(where / NAMES, _text({name: names_of(graphs) for name, graphs in sets.items()}))
        checkpoint.write(where / CONFIG, _text(description | {"names": list(sets)}))

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, model: Model | None = None) -> Self:
        """Return the network that `save_pretrained` wrote. Nothing is unpickled, and no code of the folder runs.

        The class is this one or a subclass that has been imported: `vpps.Pretrained.from_pretrained(folder)` reads the
        networks of `vpps.zoo` and all of yours.

        Args:
            model: the network declares its parameters here, within the scope that is open. Default: a new Model.

        Raises:
            CheckpointError: a file is missing or damaged, or has a newer format; the class is unknown; the constructor
                refuses the arguments; the weights lack a parameter, have one too many, or one of another shape.
            ModelError, DtypeError: a weight is NaN, infinite, or not numeric.
        """
        where = as_path(folder, f"{cls.__name__}.from_pretrained", CheckpointError)
        path, weights = where / CONFIG, where / WEIGHTS
        config = _read_json(path)
        version, name, arguments, names = map(config.get, ("format", "class", "arguments", "names"))
        if type(version) is int and version > FORMAT:
            raise CheckpointError(
                f"{path}: written by vpps {config.get('vpps')} in format {version}; this is vpps {__version__}, which "
                f"reads formats up to {FORMAT}: install a newer vpps"
            )
        if version != FORMAT or not isinstance(arguments, dict) or not isinstance(names, list):
            raise CheckpointError(f"{path}: damaged, or not written by save_pretrained")
        kinds = {_name(kind): kind for kind in _subclasses(cls)}
        if name not in kinds:
            raise CheckpointError(
                f"{path}: holds a {name!r}, which is neither {cls.__name__} nor a subclass of it that has been "
                f"imported ({', '.join(kinds)})"
            )
        metadata, tensors = checkpoint.read_tensors(weights)
        if checkpoint.CHECKSUM in metadata:  # other programs write none
            checkpoint.refuse_damaged(weights, metadata, tensors)
        sets = _sets(where / NAMES, names)
        network, own = _made(kinds[name], arguments, Model() if model is None else model, str(path))
        _refuse_misfits(weights, own, tensors)
        for key, parameter in own.items():
            parameter.assign(tensors[key])
        if sets:
            network.like = sets.get("", sets)
        return network


Network = TypeVar("Network", bound=Pretrained)


def _made(
    kind: type[Network], arguments: dict[str, Any], model: Model, what: str
) -> tuple[Network, dict[str, Parameter]]:
    """Return a network and its parameters, by their names within the model's scope. Raises CheckpointError."""
    scope, before = _scope_of(model), len(model)
    try:
        network = kind(model, **arguments)
    except (TypeError, VppsError) as error:
        raise CheckpointError(f"{what}: {kind.__name__}(model, **{arguments!r}) fails: {error}") from error
    return network, {p.name.removeprefix(scope): p for p in list(model)[before:]}


def _refuse_misfits(path: Path, own: Mapping[str, Parameter], tensors: Mapping[str, NDArray[Any]]) -> None:
    checkpoint.refuse_others(path, own.keys(), tensors.keys(), "network")
    for name, parameter in own.items():
        checkpoint.refuse_shape(path, name, tensors[name].shape, parameter.shape, "network")


def _scope_of(model: Model) -> str:
    return "".join(f"{part}/" for part in model._scope)


def _subclasses(kind: type[Network]) -> Iterator[type[Network]]:
    """Yield a class, and then its subclasses in the order of their definition, so that the latest of a name counts."""
    yield kind
    for below in kind.__subclasses__():
        yield from _subclasses(below)


def _name(kind: type[Pretrained]) -> str:
    return f"vpps.zoo.{kind.__name__}" if kind.__module__.startswith("vpps.zoo.") else kind.__name__


def _arguments(kind: type[Pretrained], arguments: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a constructor's call by name, without the model, and those defaults that JSON can hold.

    Raises:
        CheckpointError: JSON cannot hold an argument.
    """
    signature = inspect.signature(kind.__init__)
    bound = signature.bind(None, *arguments, **options)
    given = {*bound.arguments}
    bound.apply_defaults()
    found: dict[str, Any] = {}
    for name, value in list(bound.arguments.items())[1:]:
        how = signature.parameters[name].kind
        for key, x in value.items() if how is how.VAR_KEYWORD else [(name, value)]:
            if isinstance(x, Model) or (how is how.VAR_POSITIONAL and not x):
                continue
            try:
                found[key] = _as_json(x)
            except TypeError as error:
                if name in given:
                    raise CheckpointError(
                        f"{kind.__name__}({key}={x!r}): {CONFIG} holds numbers, strings, bools, None, lists, tuples "
                        f"and dicts, not {error}"
                    ) from None
    return found


def _as_json(value: Any) -> Any:
    """Return a value of JSON types. Raises TypeError, which says what JSON cannot hold."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, list | tuple):
        return [_as_json(x) for x in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _as_json(x) for key, x in value.items()}
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise TypeError(f"{value!r} of type {type(value).__name__}")


def _text(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _read_json(path: Path) -> dict[str, Any]:
    """Return the object in a file. Raises CheckpointError."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; expected a folder that save_pretrained wrote") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged or no JSON ({error})") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: damaged: no JSON object")
    return found


def _sets(path: Path, names: list[Any]) -> dict[str, GraphSet]:
    """Return the sets of graphs for `like`. Raises CheckpointError."""
    state = _read_json(path) if names else {}
    try:
        return {name: set_kept(state, name) for name in names}
    except (VppsError, TypeError) as error:
        raise CheckpointError(f"{path}: {error}") from error
