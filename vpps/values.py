"""Converts users' arrays, numbers and indices to float32 and int, and raises errors that name the problem."""

from __future__ import annotations

import math
import operator
import os
import struct
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpps.errors import DtypeError, VppsError
from vpps.interop import host_array, refuse_masked, requires_gradient, widened

Float32 = NDArray[np.float32]
MAX_FLOAT32, MIN_NORMAL = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)


def as_float32(value: ArrayLike, what: str) -> Float32:
    """Return a C-contiguous float32 copy of `value` in the host's memory. `value` may be on a GPU (interop.py).

    Wider floats are rounded. Raises DtypeError for booleans, strings, objects, complex numbers, integers that float32
    does not hold exactly, and finite numbers beyond float32's range.
    """
    array = as_array(value, what)
    is_narrow = array.dtype.kind == "V" and np.can_cast(array.dtype, np.float32)  # JAX's bfloat16 or a float8
    if array.dtype.kind not in "fiu" and not is_narrow:
        raise DtypeError(f"{what}: expected numbers, got dtype {array.dtype}; convert it to float32 first")
    with np.errstate(over="ignore"):
        result = np.array(array, dtype=np.float32, order="C", copy=True)
    if array.dtype.kind in "iu":
        exact = np.array_equal(result.astype(np.float64), array.astype(np.float64)) and (
            array.size == 0 or max(abs(int(array.max())), abs(int(array.min()))) <= 2**53
        )
        if not exact:
            raise DtypeError(f"{what}: integers beyond 2**24 do not fit float32 exactly; convert them yourself")
    elif array.dtype.itemsize > 4 and np.any(np.isinf(result) & np.isfinite(array)):
        raise DtypeError(f"{what}: holds finite numbers beyond float32's range (3.4e38); rescale them")
    return result


def as_array(value: Any, what: str) -> NDArray[Any]:
    """Return `value` as a NumPy array in the host's memory, copied only if necessary.

    Raises DtypeError: `value` does not hold numbers, JAX is still tracing it, or some elements are masked out.
    """
    if type(value) is not np.ndarray:
        refuse_masked(value, what)
    if not isinstance(value, np.ndarray | list | tuple | float | int):  # these are on the host
        try:
            value = widened(value)
        except DtypeError as error:
            raise DtypeError(f"{what}: {error}") from None
        value = host_array(value, what)
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # RuntimeError: PyTorch, if a tensor requires gradients
        if requires_gradient(value):
            raise DtypeError(
                f"{what}: the tensor requires gradients; graph.input and graph.rows pass them on with grad=True, "
                "anywhere else give tensor.detach()"
            ) from None
        if type(error).__name__ == "TracerArrayConversionError":
            raise DtypeError(
                f"{what}: an array that JAX traces, inside jit, grad or vmap, has no numbers yet; call vpps outside of "
                "them; for jax.grad, call it within a function of jax.custom_vjp"
            ) from None
        raise DtypeError(f"{what}: cannot be read as an array of numbers ({error})") from error


def as_number(value: Any) -> float | None:
    """Return `value` as a Python float if it is a plain real number (Python's or NumPy's, not a bool), else None."""
    if type(value) is float:
        return value
    if isinstance(value, bool | np.bool_):
        return None
    refuse_masked(value, "a number")
    if isinstance(value, int | float | np.integer | np.floating):
        try:
            return float(value)
        except OverflowError:
            raise DtypeError("an int beyond the range of floats cannot be a constant of a graph") from None
    if isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "fiu":
        return float(value)
    return None


def as_index(value: Any) -> int | None:
    """Return `value` as an int if it is an integer scalar (Python's, NumPy's, a 0-d array; not a bool), else None."""
    if isinstance(value, bool | np.bool_) or (type(value) is not int and getattr(value, "ndim", 0) > 0):
        return None  # `operator.index` accepts a one-element PyTorch tensor, but no such NumPy array
    if isinstance(value, np.ndarray):
        refuse_masked(value, "an index")
    try:
        return operator.index(value)
    except TypeError:
        return None


def as_shape(value: Any) -> tuple[int, ...] | None:
    """Return `value` as a shape if it is a tuple or list of positive ints, else None."""
    lengths = tuple(map(as_index, value)) if isinstance(value, tuple | list) else (None,)
    known = tuple(n for n in lengths if n is not None and n > 0)
    return known if len(known) == len(lengths) else None


def as_flag(value: Any, what: str, error: type[VppsError] = DtypeError) -> bool:
    """Return `value` if it is a Python or NumPy bool; raises `error` for anything else: "no" must not pass for True."""
    if value is True or value is False:
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    raise error(f"{what}={value!r}: expected True or False")


def as_count(value: Any, what: str, error: type[VppsError], least: int = 1, most: int | None = None) -> int:
    """Return `value` as an int from `least` to `most`; raises `error` for anything else."""
    number = as_index(value)
    if number is None or number < least or (most is not None and number > most):
        raise error(
            f"{what}={value!r}: expected an int, {f'at least {least}' if most is None else f'{least} to {most}'}"
        )
    return number


def as_items(value: Any, what: str) -> list[Any]:
    """Return the items of a sequence. Raises DtypeError if `value` is not a sequence."""
    try:
        items = iter(value)
    except TypeError:
        raise DtypeError(f"{what}: expected expressions in a list, got {value!r}") from None
    return list(items)


def as_path(value: Any, what: str, error: type[VppsError]) -> Path:
    """Return the path of a str or an `os.PathLike`; raises `error` for anything else and for impossible file names."""
    try:
        path = Path(value)
        usable = b"\0" not in os.fsencode(path)
    except (TypeError, UnicodeEncodeError):
        usable = False
    if not usable:
        raise error(f"{what}: expected the path of a file, got {value!r}")
    return path


def as_mapping(value: Any, what: str, error: type[VppsError]) -> dict[str, Any]:
    """Return `value` as a dict by name; raises `error` for anything else."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise error(f"{what}={value!r}: expected a dict by name")
    return dict(value)


def check_callable(f: Any, what: str) -> None:
    """Raise DtypeError unless `f` is a function or a cell."""
    if not callable(f):
        raise DtypeError(f"{what}({f!r}): expected a function as the first argument")


def said_of(name: str, known: Collection[str]) -> str:
    """Return a suggestion for an unknown name: similar known names if there are any, otherwise all known names."""
    near = get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {', '.join(known) or 'none'}"


def single_factors(value: float, power: int = 1) -> list[float]:
    """Return factors with product value ** power (1 or -1): one factor, unless it overflows or is subnormal in float32.

    If a number is multiplied by the factors in order, it leaves float32's range only if the result does.
    """
    found = value if power == 1 else 1.0 / value
    if value == 0 or not math.isfinite(value) or MIN_NORMAL <= abs(found) <= MAX_FLOAT32:
        return [found]
    mantissa, exponent = math.frexp(value)
    mantissa, exponent = mantissa**power, min(max(power * exponent, -378), 378)  # all products beyond are 0 or inf
    parts = 2 if abs(exponent) <= 252 else 3
    step = exponent // parts
    return [math.ldexp(mantissa, exponent - (parts - 1) * step)] + [math.ldexp(1.0, step)] * (parts - 1)


_SINGLE, _WORD = struct.Struct("<f"), struct.Struct("<I")


def float_word(value: float) -> int:
    """Return the bits of an IEEE single. A value beyond its range becomes infinite, as in any float32 arithmetic."""
    try:
        word: int = _WORD.unpack(_SINGLE.pack(value))[0]
    except OverflowError:
        with np.errstate(over="ignore"):
            word = _WORD.unpack(np.float32(value).tobytes())[0]
    return word


def exact_key(value: Any) -> Any:
    """Return a key that is equal only for identical values. Python's equality is not enough: the keys of 1, 1.0 and
    True differ, as do those of 0.0 and -0.0, at any depth of hashable objects. NaNs with equal bits have equal keys.

    Raises:
        TypeError: the value is not hashable.
    """
    if type(value) is not dict:
        hash(value)
    return _exact(value)


_ATOMS = {int, bool, str, bytes, type(None)}  # equality within each of these types is exact
_DOUBLE = struct.Struct("<d")


def _exact(value: Any) -> Any:
    kind = type(value)
    if kind in _ATOMS:
        return kind, value
    if kind is float:
        return kind, _DOUBLE.pack(value)
    if isinstance(value, np.generic):
        return kind, str(value.dtype), value.tobytes()
    if isinstance(value, tuple | list):
        return kind, tuple(map(_exact, value))
    if isinstance(value, set | frozenset):
        return kind, frozenset(map(_exact, value))
    if isinstance(value, Mapping):  # the order matters: a loop over the mapping sees it
        return kind, tuple((_exact(k), _exact(v)) for k, v in value.items())
    if isinstance(value, range | slice):
        return kind, *map(_exact, (value.start, value.stop, value.step))
    if kind is complex:
        return kind, _DOUBLE.pack(value.real), _DOUBLE.pack(value.imag)
    if is_dataclass(kind) and "__hash__" in vars(kind) and "__eq__" in vars(kind):
        return kind, tuple(_exact(getattr(value, f.name)) for f in fields(value))
    if kind.__hash__ is None:
        return kind, _Itself(value)
    same = kind, value
    equal: Any = kind.__eq__
    if equal is object.__eq__ or isinstance(value, type) or hasattr(value, "__array__"):
        return same
    try:  # an object with its own `__eq__`: compare its state as well
        made_of = value.__reduce_ex__(2)
        return (*same, _exact(made_of[1:3]) if isinstance(made_of, tuple) else made_of)
    except Exception:  # the object has no such state
        return same


class _Itself:
    """Key by identity: equal only to another key of the same object. It keeps the object alive."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is _Itself and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)
