"""Parameter gradients outside the pool, in the formats that calls accept and return."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vpps.engine.nonfinite import SQUARABLE
from vpps.errors import DtypeError, IndexRangeError, ModelError, ShapeError
from vpps.interop import is_on_gpu, refuse_masked
from vpps.model.model import Lookup, Model, Parameter
from vpps.model.state import AccumulatedGradients
from vpps.placement.distribution import Distribution, Pool
from vpps.planner.plan import Plan
from vpps.runtime.device_pool import DevicePool
from vpps.values import Float32, as_float32, as_mapping, said_of


class RowGradients(NamedTuple):
    """The sparse gradient of a table.

    Attributes:
        rows: (n,) int64, the numbers of the rows in use, increasing.
        values: (n, ...) float32, the gradient of each of these rows.
    """

    rows: NDArray[np.int64]
    values: Float32


@dataclass(frozen=True, slots=True)
class GradientPiece:
    """Dense gradients of all parameters in a pool's layout.

    Attributes:
        floats: the gradients; a CuPy array on a GPU.
        distribution: layout of the pool; `floats` is its span `gradients`.
        is_in_pool: True if `floats` is memory of the pool, not a copy.
    """

    floats: Float32
    distribution: Distribution
    is_in_pool: bool

    @classmethod
    def of(cls, plan: Plan, pool: Pool, distribution: Distribution) -> GradientPiece:
        """Return the gradients of a launch, with zeros for parameters without a gradient."""
        touched, (begin, end) = plan.touched, distribution.gradients
        for p, place in distribution.places.items():
            if place.gradient and p not in touched and not isinstance(p, Lookup):
                pool[place.gradient : place.gradient + place.floats] = 0
        in_memory = pool.view(begin, (end - begin,)) if isinstance(pool, DevicePool) else pool[begin:end]
        return cls(in_memory, distribution, is_in_pool=True)

    def copied(self) -> GradientPiece:
        """Return a copy that does not depend on the pool."""
        return replace(self, floats=self.floats.copy(), is_in_pool=False)

    def on_host(self) -> GradientPiece:
        """Return the piece in host memory. A copy from a GPU is page-locked; CuPy reuses that memory for the next
        step."""
        if not is_on_gpu(self.floats):
            return self
        import cupy

        memory = cupy.cuda.alloc_pinned_memory(self.floats.nbytes)
        host = cupy.asnumpy(self.floats, out=np.frombuffer(memory, np.float32, self.floats.size))
        return replace(self, floats=host, is_in_pool=False)

    def arrays(self) -> dict[str, Float32]:
        """Return copies by parameter name, in the shapes that users see."""
        begin, fetch, floats = self.distribution.gradients[0], self.distribution.fetch, self.on_host().floats
        return {
            p.name: fetch(floats, p, place.gradient - begin)
            for p, place in self.distribution.places.items()
            if place.gradient and not isinstance(p, Lookup)
        }


Gradient = Float32 | RowGradients
Gradients = dict[str, Gradient]


def found_gradients(plan: Plan, pool: Pool, distribution: Distribution, dense: bool = True) -> Gradients:
    """Return copies of a launch's gradients by name, for the parameters that have a gradient.

    Args:
        dense: False for the gradients of tables only; these are not copied if they are in host memory.
    """
    found: Gradients = {}
    for p, place in distribution.places.items():
        if p in plan.tables:
            used = plan.tables[p]
            width = math.prod(p.shape[1:])
            values = pool[used.gradient : used.gradient + len(used.rows) * width].reshape(-1, *p.shape[1:])
            found[p.name] = RowGradients(used.rows.copy(), values.copy() if dense else values)
        elif dense and p in plan.touched:
            found[p.name] = distribution.fetch(pool, p, place.gradient)
        elif dense and p in plan.reached:
            found[p.name] = np.zeros(p.shape, np.float32)
    return found


def dense_gradients(model: Model, found: Gradients) -> dict[str, Float32]:
    """Convert gradients of tables to dense arrays; return all gradients as arrays."""
    dense: dict[str, Float32] = {}
    for name, gradient in found.items():
        if isinstance(gradient, np.ndarray):
            dense[name] = gradient
        else:
            dense[name] = np.zeros(model[name].shape, np.float32)
            dense[name][gradient.rows] = gradient.values
    return dense


def given_gradients(model: Model, given: Mapping[str, Any], what: str, copy: bool) -> AccumulatedGradients:
    """Check gradients from the user: arrays in the parameters' shapes, by parameter name. A table takes `RowGradients`,
    or a dense array, whose zero rows are dropped. float32 arrays are not copied unless `copy` is true.

    Raises:
        ModelError: the model does not have the parameter, or it is not trainable.
        ShapeError, DtypeError, IndexRangeError: wrong shape, not numbers, or rows that the table does not have.
    """
    found = AccumulatedGradients(1)
    for name, gradient in as_mapping(given, f"{what}: gradients", ModelError).items():
        where = f"{what}: the gradient of {name!r}"
        if name not in model:
            raise ModelError(f"{where}: the model has no such parameter; {said_of(name, [p.name for p in model])}")
        p = model[name]
        if not p.trainable:
            raise ModelError(f"{where}: it is not trainable; leave its gradient out, or set trainable = True")
        if isinstance(gradient, tuple):
            if not isinstance(p, Lookup) or len(gradient) != 2:
                raise DtypeError(f"{where}: expected an array of shape {p.shape}; (rows, values) is for tables")
            found.rows[name], found.gradients[name] = _rows(p, *gradient, where, copy)
            continue
        array = _array(gradient, p.shape, where, copy)
        if isinstance(p, Lookup):
            rows = np.flatnonzero(array.reshape(len(array), -1).any(axis=1))
            found.rows[name], array = rows, array[rows]
        found.gradients[name] = array
    return found


def _array(value: Any, shape: tuple[int, ...], where: str, copy: bool) -> Float32:
    """Return `value` as a contiguous float32 array; it is not copied if it already is one and `copy` is false."""
    good = type(value) is np.ndarray and value.dtype == np.float32 and value.flags.c_contiguous
    array: Float32 = value if good and not copy else as_float32(value, where)
    if array.shape != shape:
        raise ShapeError(f"{where}: expected shape {shape}, got {array.shape}")
    return array


def _rows(
    table: Parameter, rows: Any, values: Any, where: str, copy: bool = False
) -> tuple[NDArray[np.int64], Float32]:
    """Return rows with unique, increasing numbers: rows with the same number are added up in order."""
    refuse_masked(rows, f"{where}: rows")
    numbers = np.asarray(rows)
    if numbers.ndim != 1 or (numbers.dtype.kind not in "iu" and numbers.size):
        raise DtypeError(f"{where}: rows are ints, (n,); got shape {numbers.shape}, dtype {numbers.dtype}")
    numbers = numbers.astype(np.int64)
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < table.shape[0]:
        bad = numbers[(numbers < 0) | (numbers >= table.shape[0])][0]
        raise IndexRangeError(f"{where}: row {bad} is out of range; rows of {table!r}: 0 to {table.shape[0] - 1}")
    array = _array(values, (len(numbers), *table.shape[1:]), where, copy)
    if len(numbers) > 1 and not (np.diff(numbers) > 0).all():
        return summed_rows(numbers, array)
    return numbers, array


@np.errstate(over="ignore", invalid="ignore")  # the caller tests for finite values afterwards
def summed_rows(numbers: NDArray[np.int64], values: Float32) -> RowGradients:
    """Add up rows with equal numbers, in the given order.

    Args:
        numbers: (n,), row numbers, not negative.
        values: (n, ...), one row for each number.
    """
    order = numbers.argsort(kind="stable")
    rising = numbers[order]
    begins = np.flatnonzero(np.diff(rising, prepend=-1))
    counts = np.diff(begins, append=len(numbers))
    total, k = values[order[begins]], 1
    more = np.flatnonzero(counts > k)  # sums that have a further addend
    while len(more):
        total[more] += values[order[begins[more] + k]]
        k += 1
        more = more[counts[more] > k]
    return RowGradients(rising[begins], total)


@np.errstate(over="ignore", invalid="ignore")
def added(model: Model, kept: AccumulatedGradients | None, more: AccumulatedGradients) -> AccumulatedGradients:
    """Add two sets of gradients, and their numbers of calls; neither argument is changed."""
    if kept is None:
        return more
    total = AccumulatedGradients(kept.calls + more.calls, dict(kept.gradients), dict(kept.rows))
    for name, gradient in more.gradients.items():
        before = kept.gradients.get(name)
        if before is None:
            total.gradients[name] = gradient
            if name in more.rows:
                total.rows[name] = more.rows[name]
        elif name in more.rows:
            rows = np.concatenate([kept.rows[name], more.rows[name]])
            total.rows[name], total.gradients[name] = _rows(model[name], rows, np.concatenate([before, gradient]), name)
        else:
            total.gradients[name] = before + gradient
    return total


def are_finite(gradients: Iterable[Float32]) -> bool:
    """Return True if all values are finite and small enough to be squared; the kernel tests the same before a step."""
    return all(g.min() > -SQUARABLE and g.max() < SQUARABLE for g in gradients if g.size)
