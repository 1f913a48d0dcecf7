"""Model, Parameter and Lookup. The Model, not a Handle, owns parameters and optimizer state."""

from __future__ import annotations

import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpps.errors import CheckpointError, ModelError, ShapeError
from vpps.hints import Hinting, read_only
from vpps.init import INITIALISERS, Initialiser
from vpps.model import checkpoint
from vpps.ops import Shape, size
from vpps.ops.element import WORD_BYTES
from vpps.ops.operand import Expression, Operand, Recent, record
from vpps.text import Readable, counted, dir_without, in_bytes, table
from vpps.turns import Turn, reading, serialised
from vpps.values import Float32, as_count, as_flag, as_float32, as_index, as_number, as_path, as_shape

if TYPE_CHECKING:
    from vpps.compiler.passes.cell_history import CellHistory
    from vpps.model.learned_policy import LearnedPolicy
    from vpps.model.optim import OptimizerState
    from vpps.model.state import AccumulatedGradients, Averages
    from vpps.placement.distribution import Distribution
    from vpps.record.rows import Rows

Init = str | float | ArrayLike | Initialiser


class Lender(Protocol):
    """A tensor on a GPU that holds a parameter's weights. The Model's copy on the host follows when it is read."""

    def bring(self, host: Float32) -> None:
        """Copy the weights to the Model's array if the tensor has changed since the last copy."""

    def can_put(self, machine: Any, distribution: Distribution) -> bool:
        """Return True if the weights can be copied to the machine's pool on the GPU."""

    def put(self, machine: Any, distribution: Distribution, parameters: Sequence[Parameter]) -> None:
        """Copy the weights of parameters with lenders to the machine's pool."""


class Parameter(Operand, Hinting):
    """A trainable array, created by `Model.parameter` and usable as an operand. A matrix can multiply vectors and
    computed matrices (`W @ x`, `W.T @ x`), and its rows can be looked up. Other ops copy it for each vertex.
    """

    # `version` counts assignments: packed copies with a different version are out of date.
    __slots__ = (
        "__weakref__", "_host", "_model", "_name", "_shape", "_trainable", "is_transposed", "lender", "version",
    )  # fmt: skip
    name: str = read_only("_name", 'Full name, scopes included, such as "encoder/U".')
    shape: Shape = read_only("_shape", "Shape: (), (n,) or (rows, columns); of a table, rows first.")

    def __init__(self, model: Model, name: str, value: Float32, trainable: bool) -> None:
        self._model = weakref.ref(model)
        self._name = name
        self._shape = value.shape
        self._trainable = trainable
        self.version = 0
        self.is_transposed = False  # True once a cell multiplies by the transpose
        self._host = value
        self.lender: Lender | None = None  # tensor on a GPU that holds the weights (vpps.torch)

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()} {self.name!r} of shape {self.shape}>"

    __dir__ = dir_without("host is_transposed lender model version")

    @property
    def host(self) -> Float32:
        """The Model's copy, which is outdated while a handle trains. Always written in place, because PyTorch tensors
        may share its memory (vpps.torch)."""
        if self.lender is not None:
            self.lender.bring(self._host)
        return self._host

    @host.setter
    def host(self, value: Float32) -> None:
        # Ctrl-C can interrupt this call, unlike an assignment to `_host`.
        self._host = value

    @property
    def T(self) -> Transposed:  # type: ignore[override]
        """The transpose of a matrix, for products such as `W.T @ x`. It shares the weights of W and their training."""
        if len(self.shape) != 2:
            raise ShapeError(f"{self!r}.T: expected a matrix; a vector has no transpose")
        return Transposed(self)

    @property
    def model(self) -> Model:
        """The Model that owns the parameter."""
        model = self._model()
        if model is None:
            raise ModelError(f"{self!r}: its model no longer exists; keep a reference to the Model")
        return model

    @property
    def trainable(self) -> bool:
        """True if updates change the parameter. May be set at any time, to freeze and unfreeze layers.

        The average of a frozen parameter equals its weights. Unfreezing restarts the average.
        """
        return self._trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        value = as_flag(value, f"{self!r}.trainable", ModelError)
        if self._trainable != value:
            self._set_trainable(value)

    @property
    def _turn(self) -> Turn:
        model = self._model()
        return model.turn if model is not None else Turn()

    def _as_after_last_step(self, read: Callable[[], Any]) -> Any:
        return self.model._as_after_last_step(read)

    @serialised
    def _set_trainable(self, value: bool) -> None:
        self._pull()
        self._trainable = value
        self.model.layout_version += 1
        if self.model.averages is not None:
            self.model.averages.forget(self)

    @reading
    def numpy(self) -> Float32:
        """Return a float32 copy of the current weights. Waits for a launch in flight."""
        self._pull()
        return self.host.copy()

    @reading
    def average(self) -> Float32:
        """Return a copy of the weights' moving average (`Handle(ema=...)`), or of the weights if they are frozen.

        Raises:
            ModelError: the model has no averages.
        """
        model = self.model
        return model.checked_averages(f"{self!r}.average").of(self) if not model.is_averaged else self.host.copy()

    @serialised
    def assign(self, value: ArrayLike) -> None:
        """Replace the weights. Their moving average is kept and then follows the new weights.

        Raises:
            ShapeError, DtypeError: the value has a different shape, or is not numeric.
            ModelError: a weight is NaN or infinite, or the call is inside `Model.averaged`.
        """
        array = as_float32(value, f"{self!r}.assign")
        if array.shape != self.shape:
            raise ShapeError(f"{self!r}.assign: expected shape {self.shape}, got {array.shape}")
        refuse_nonfinite(array, f"{self!r}.assign")
        model = self._model()
        if model is not None:
            model.refuse_if_averaged(f"{self!r}.assign")
            model.pull_weights()
            if model.averages is not None:
                model.averages.catch_up(self)
        self.host[...] = array
        self.version += 1
        if model is not None:
            model.notice_changes()

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Parameter:
        """Return the copied model's parameter if the same deepcopy copies the model (vpps.torch.Module); else raise."""
        model = (memo or {}).get(id(self._model()))
        if isinstance(model, Model):
            return model[self.name]
        return self._refuse_copy()

    def _refuse_copy(self, *protocol: Any) -> NoReturn:
        raise ModelError(
            f"{self!r} cannot be pickled or copied, because it belongs to its model; use x.numpy() to copy its "
            "weights, and model.save and Model.load to bring a model into another process"
        )

    __copy__ = __reduce__ = __reduce_ex__ = _refuse_copy

    def _pull(self) -> None:
        """Make `host` current. If the Model is gone, `host` is current already, because nothing trains it."""
        model = self._model()
        if model is not None:
            model.pull_weights()


class Transposed(Operand):
    """Transpose `W.T` of a parameter, for products `W.T @ x`.

    Attributes:
        T: the parameter.
    """

    __slots__ = ("_shape", "parameter")
    shape: Shape = read_only("_shape", "Shape of the transpose.")

    def __init__(self, parameter: Parameter) -> None:
        self.parameter = parameter
        self._shape = parameter.shape[::-1]

    def __repr__(self) -> str:
        return f"<transpose of {self.parameter!r}>"

    @property
    def T(self) -> Parameter:  # type: ignore[override]
        return self.parameter

    @overload
    def __matmul__(self, other: Rows) -> Rows: ...
    @overload
    def __matmul__(self, other: Expression | Parameter) -> Expression: ...
    def __matmul__(self, other: Any) -> Any:
        parameter = self.parameter
        product = record("affine_transposed", [parameter, other])
        if not parameter.is_transposed:  # forward-only handles must allocate the transpose
            parameter.is_transposed = True
            parameter.model.layout_version += 1
        return product


class Lookup(Parameter):
    """A table of rows (word embeddings), created by `Model.lookup`. Updates touch only the rows that a batch used.

    A row is used if a path of recorded ops leads from it to the loss without passing through `stop_gradient` or the
    condition of `where`. A used row may have a gradient of zero.
    """

    __slots__ = ()


class Model(Readable, Hinting):
    """A set of named parameters, and the seed of their initial values.

    Args:
        seed: any int. A parameter's initial value depends only on (seed, name, shape), not on the order of declaration.

    Attributes:
        step: number of updates tried, including those skipped because a value was not finite. Checkpoints store it.
        metadata: the user's strings, which `save` writes and `load` and `restore` read.
        learned_policy: latest policy (`vpps.learn_policy`) of a training handle, or None. Checkpoints store it.

    Example:
        >>> model = Model(seed=1)
        >>> W = model.parameter("W", (4, 3))
        >>> W.numpy().shape
        (4, 3)
    """

    __slots__ = (
        "__weakref__", "_parameters", "_scope", "_seed", "_step", "_trainer", "_turn", "accumulated", "averages",
        "bare_programs", "cell_history", "is_averaged", "layout_version", "learned_policy", "metadata",
        "optimizer_state", "places", "sharers", "state_version",
    )  # fmt: skip
    seed: int = read_only("_seed", "Seed of initial values, dropout and shuffling.")
    turn: Turn = read_only("_turn", "Turns of the calls that read or change the weights.")

    def __init__(self, seed: int = 0) -> None:
        index = as_index(seed)
        if index is None:
            raise ModelError(f"Model(seed={seed!r}): expected an int")
        self._seed = index
        self._step = 0  # trainers set this attribute directly, because Ctrl-C could interrupt a function call
        self._turn = Turn()
        self.metadata: dict[str, str] = {}
        self.optimizer_state: OptimizerState | None = None
        self.accumulated: AccumulatedGradients | None = None  # sums of fb(accumulate=True), for the next update
        self.averages: Averages | None = None  # averages of the weights, if a handle computes them
        self.cell_history: CellHistory | None = None  # trained cells; decides which parameters are stored together
        self.learned_policy: LearnedPolicy | None = None
        self.is_averaged = False  # True inside `averaged`, when the parameters show their averages
        self.state_version = 0  # counts replacements of the training state from outside (restore)
        self.layout_version = 0  # counts changes to the set of parameters or of trained parameters
        self.places: dict[Parameter, str] = {}  # places of the weights during the latest handle's launches
        self._parameters: dict[str, Parameter] = {}
        self._scope: tuple[str, ...] = ()
        self.bare_programs = Recent()  # traced one-op cells over these parameters, kept by vpps.graph
        self._trainer: weakref.ref[Any] | None = None
        self.sharers: list[weakref.WeakMethod[Any]] = []  # callbacks that count PyTorch's changes

    def __repr__(self) -> str:
        of_each = (len(self), "parameter"), (self.n_weights, "weight"), (self.step, "step")
        return f"<vpps.Model: {', '.join(counted(*each) for each in of_each)}>"

    def __str__(self) -> str:
        rows = [(p.name, str(p.shape), size(p.shape), "yes" if p.trainable else "no", self.places.get(p)) for p in self]
        trainable = sum(size(p.shape) for p in self if p.trainable)
        totals = (
            f"{counted(len(self), 'parameter')}, {counted(self.n_weights, 'weight')} ({trainable:,} trainable), "
            f"{in_bytes(WORD_BYTES * self.n_weights)}; {counted(self.step, 'step')} trained"
        )
        heads = ("parameter", "shape", "weights", "trainable", "where")
        return "\n".join([*table(heads, rows, text_columns=(0, 1, 3, 4)), totals])

    def _hint_of(self, name: str) -> str | None:
        known = not name.startswith("_") and name in self._parameters
        return f"that parameter is model[{name!r}]" if known else None

    def __call__(self, *inputs: Any) -> NoReturn:
        """Raise ModelError: unlike a PyTorch module, a Model cannot be called."""
        raise ModelError(
            "a Model holds weights and cannot be called: your cells and functions compute on expressions of a "
            "vpps.Graph(), and handle.forward(graph, [x]) evaluates them"
        )

    # ---- declaration

    __dir__ = dir_without(
        "accumulated averages bare_programs cell_history checked_averages is_averaged layout_version "
        "notice_changes optimizer_state places pull_weights refuse_if_averaged sharers state_version trainer turn"
    )

    def parameter(self, name: str, shape: Shape, init: Init | None = None, trainable: bool = True) -> Parameter:
        """Declare a parameter of rank 0, 1 or 2.

        Args:
            name: unique within the scope; "/" separates scopes.
            init: an initialiser's name, a number, an array of that shape (pretrained weights), or a function
                `(rng, shape) -> array`. Default: "glorot_uniform" for matrices, "zeros" otherwise.

        Raises:
            ModelError: the name is taken or empty, the initialiser is unknown, or a weight is not finite.
            ShapeError: the shape is invalid, or an array has a different shape.
        """
        return self._declare(Parameter, name, shape, init, trainable, ranks=(0, 1, 2))

    @overload
    def lookup(
        self,
        name: str,
        shape: Shape,
        init: Init | None = None,
        trainable: bool = True,
        *,
        dense: Literal[False] = False,
    ) -> Lookup: ...
    @overload
    def lookup(
        self, name: str, shape: Shape, init: Init | None = None, trainable: bool = True, *, dense: bool
    ) -> Parameter: ...
    def lookup(
        self, name: str, shape: Shape, init: Init | None = None, trainable: bool = True, *, dense: bool = False
    ) -> Parameter:
        """Declare a table: `shape = (rows, d)`, or `(rows, r, c)` for rows that are matrices. Default: uniform +-0.1.

        Args:
            dense: True makes the table a parameter of rank 2, which can also multiply: with tied embeddings `E @ h`
                gives the logits. Its gradient is dense, and an update touches all rows.

        Raises the same errors as `parameter`.
        """
        kind, ranks = (Parameter, (2,)) if dense else (Lookup, (1, 2, 3))
        return self._declare(kind, name, shape, "uniform" if init is None else init, trainable, ranks)

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefix the names declared inside with `name/`."""
        before, self._scope = self._scope, (*self._scope, _checked_name(name))
        try:
            yield
        finally:
            self._scope = before

    def _declare(
        self, kind: type[Parameter], name: str, shape: Shape, init: Init | None, trainable: bool, ranks: tuple[int, ...]
    ) -> Parameter:
        trainable = as_flag(trainable, f"{name!r}: trainable", ModelError)
        full = "/".join([*self._scope, _checked_name(name)])
        if full in self._parameters:
            raise ModelError(
                f"{full!r} is already a parameter of this model (shape {self._parameters[full].shape}); "
                "choose another name, or declare it inside `with model.scope(...)`; to continue from a checkpoint, "
                "declare a new Model's parameters and call model.restore(path)"
            )
        shape = _checked_shape(full, shape, ranks)
        value = self._initial(full, shape, init)
        parameter = kind(self, full, value, trainable)
        self._add(parameter)
        return parameter

    @serialised
    def _add(self, parameter: Parameter) -> None:
        self.pull_weights()  # finishes a world's step in flight, which needs the unchanged model
        self._parameters[parameter.name] = parameter
        self.layout_version += 1

    def _initial(self, name: str, shape: Shape, init: Init | None) -> Float32:
        if init is None:
            init = "glorot_uniform" if len(shape) == 2 else "zeros"
        if isinstance(init, str):
            if init not in INITIALISERS:
                raise ModelError(f"{name!r}: unknown initialiser {init!r}; known are {', '.join(sorted(INITIALISERS))}")
            init = INITIALISERS[init]
        value: ArrayLike
        if callable(init):
            rng = np.random.default_rng([abs(self.seed), int(self.seed < 0), zlib.crc32(name.encode())])
            try:
                value = init(rng, shape)
            except ValueError as error:
                raise ModelError(f"{name!r} of shape {shape}: the initialiser expects {error}") from None
        else:
            value = init if as_number(init) is None else np.full(shape, init)
        array = as_float32(value, f"initial value of {name!r}")
        if array.shape != shape:
            raise ShapeError(f"initial value of {name!r}: expected shape {shape}, got {array.shape}")
        refuse_nonfinite(array, f"initial value of {name!r}")
        return array

    def __deepcopy__(self, memo: object = None) -> Model:
        raise ModelError("a Model cannot be copied: handles and cells refer to it; use model.save and Model.load")

    __copy__ = __reduce__ = __deepcopy__  # type: ignore[assignment]

    # ---- access

    @property
    def step(self) -> int:
        """Updates tried so far. If set, schedules and dropout use it; bias correction has a count per parameter."""
        return self._step

    @step.setter
    def step(self, number: int) -> None:
        self._step = as_count(number, "model.step", ModelError, least=0, most=2**63 - 1)

    def __getitem__(self, name: str) -> Parameter:
        """Return the parameter with that full name, scopes included. Raises ModelError if there is none."""
        try:
            return self._parameters[name]
        except (KeyError, TypeError):
            known = ", ".join(self._parameters) or "none"
            raise ModelError(f"no parameter {name!r} in this model; its parameters: {known}") from None

    def __contains__(self, name: object) -> bool:
        """Return True if the model has a parameter with that name."""
        return isinstance(name, str) and name in self._parameters

    def __iter__(self) -> Iterator[Parameter]:
        """Iterate over the parameters in order of declaration."""
        return iter(self._parameters.values())

    def __len__(self) -> int:
        """Return the number of parameters."""
        return len(self._parameters)

    @property
    def n_weights(self) -> int:
        """Number of weights, lookup tables included."""
        return sum(size(p.shape) for p in self)

    @reading
    def numpy(self) -> dict[str, Float32]:
        """Return copies of all weights by name."""
        self.pull_weights()
        return {p.name: p.host.copy() for p in self}

    # ---- averages

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Replace the weights by their moving averages (`Handle(ema=...)`) inside the `with` block.

        Every handle of the model evaluates with the averages, and `save` writes them without the training state. After
        the block, the weights are restored bit for bit, and training continues unaffected.

        Raises:
            ModelError: the model has no averages, or the block is inside another one. Inside it, `assign` and `restore`
                raise ModelError, and `fb` raises HandleError.

        Example:
            >>> with model.averaged():                                   # doctest: +SKIP
            ...     accuracy = evaluate(handle)
            ...     model.save("best.safetensors")
        """
        kept: list[tuple[object, str, object]] = []
        restored = starmap(setattr, kept)
        try:
            self._show_averages(kept)
            yield
        finally:
            try:
                self._hide_averages(restored)
            finally:
                deque(restored, 0)  # in case Ctrl-C came while waiting for another thread

    @serialised
    def _show_averages(self, kept: list[tuple[object, str, object]]) -> None:
        """Show the averages, and append the attributes to restore to `kept`."""
        self.refuse_if_averaged("averaged")
        kept.append((self, "is_averaged", False))
        self.is_averaged = True
        averages = self.checked_averages("averaged")
        for p in self:
            if p.trainable and p.name in averages.values:
                average = averages.of(p)
                host = p.host
                kept += [(p, "_host", host), (p, "version", p.version + 2)]
                p._host = average
                p.version += 1

    @serialised
    def _hide_averages(self, restored: Iterator[None]) -> None:
        deque(restored, 0)  # one call, so that Ctrl-C cannot interrupt it halfway

    def checked_averages(self, what: str) -> Averages:
        """Return the current averages for the call `what`. Raises ModelError if there are none."""
        self.pull_weights()
        if self.averages is None:
            raise ModelError(f"{what}: nothing has been averaged; train with Handle(model, ..., ema=0.999)")
        return self.averages

    def refuse_if_averaged(self, what: str) -> None:
        """Raise ModelError inside `averaged`; `what` names the call, which would change weights."""
        if self.is_averaged:
            raise ModelError(
                f"{what}: inside `with model.averaged()` the model shows its averages; leave the block first"
            )

    # ---- the training handle

    @property
    def trainer(self) -> Any:
        """The open training handle, a `vpps.session.Session`, or None."""
        return self._trainer() if self._trainer is not None else None

    @trainer.setter
    def trainer(self, source: Any) -> None:
        self._trainer = weakref.ref(source) if source is not None else None

    def _as_after_last_step(self, read: Callable[[], Any]) -> Any:
        source = self.trainer
        return read() if source is None else source._as_after_last_step(read)

    @serialised
    def pull_weights(self) -> None:
        """Make `Parameter.host`, `optimizer_state`, `accumulated` and `averages` current."""
        self.notice_changes()  # first, because a pull must not overwrite them silently
        source = self.trainer
        if source is not None:
            source.pull_weights()

    def notice_changes(self) -> None:
        """Count changes to the weights made by PyTorch, and pass other changes on to its tensors (vpps.torch)."""
        for sharer in self.sharers:
            if (notice := sharer()) is not None:
                notice()

    # ---- checkpoints

    def save(self, path: str | Path, metadata: Mapping[str, str] | None = None) -> None:
        """Write weights, training state (moments, accumulated gradients, averages, the trained cells, a learned
        policy), step count and seed, atomically.

        The file is in safetensors format. It replaces an existing file and keeps that file's mode and owner. If the
        path is a link, its target is replaced.

        Args:
            metadata: your strings, read back as `model.metadata`; None keeps the last load's strings.

        Raises:
            CheckpointError: the file cannot be written, or a tensor holds NaN or infinity; an old file is unchanged.
        """
        if metadata is not None:
            if not isinstance(metadata, Mapping) or not all(
                isinstance(x, str) for item in metadata.items() for x in item
            ):
                raise ModelError(f"save: metadata maps strings to strings; got {metadata!r}")
            self.metadata = dict(metadata)
        where = as_path(path, "save", CheckpointError)
        checkpoint.write(where, self._serialised(where))

    @reading
    def _serialised(self, path: Path) -> bytes:
        return checkpoint.serialised(self, path)

    @serialised
    def restore(self, path: str | Path, strict: bool = True) -> None:
        """Read a file that `save` wrote into this model.

        Args:
            strict: True raises if a parameter is missing from the file or the model; False reads those in both.

        Raises:
            CheckpointError: the file is missing or damaged, or belongs to another model. The model is then unchanged.
        """
        self.refuse_if_averaged("restore")
        strict = as_flag(strict, "restore: strict", CheckpointError)
        checkpoint.restore(self, as_path(path, "restore", CheckpointError), strict)

    @classmethod
    def load(cls, path: str | Path) -> Model:
        """Return a new Model with the parameters and training state of a file that `save` wrote.

        If classes declare your parameters (`vpps.nn`), build the model with them again and call `restore` instead.

        Raises:
            CheckpointError: the file is missing or damaged.
        """
        return checkpoint.load(cls, as_path(path, "load", CheckpointError))


def _checked_name(name: str) -> str:
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ModelError(f"{name!r} is not a valid parameter or scope name: expected a non-empty printable string")
    return name


def _checked_shape(name: str, given: Any, ranks: tuple[int, ...]) -> Shape:
    shape = as_shape(given)
    if shape is None or len(shape) not in ranks:
        raise ShapeError(f"{name!r}: expected a tuple of {' or '.join(map(str, ranks))} positive ints, got {given!r}")
    if size(shape) >= 2**31:
        raise ShapeError(f"{name!r}: {size(shape)} weights; a parameter may have fewer than 2**31")
    return shape


def refuse_nonfinite(array: NDArray[Any], what: str) -> None:
    bad = int(array.size - np.isfinite(array).sum())
    if bad:
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ModelError(f"{what}: {bad} of {array.size} weights are NaN or infinite, the first at {where}")
