"""For operands of any magnitude, infinite or equal, values and gradients equal rounded exact arithmetic.

The formulas here are in extended precision and share nothing with the op table, as a reference with the same
cancellation as the kernel would hide it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import vpps
from tests.fuzz.program import Finding

Array = NDArray[Any]
LARGEST = float(np.finfo(np.float32).max)
FLOOR = 1e-40  # denormal numbers have few digits
CONSTANTS = (1e39, -3e38, 1e-39, -1e-45, 1e-60, 1e20, -1e-20, 3.0, 0.1)


class Formula(NamedTuple):
    """An op in the user's form, and its formula.

    Attributes:
        call: on expressions, rows, or operands inside a cell.
        value: computes the value from batches of vectors, `(n, width)` each, in extended precision.
        gradients: computes one gradient per operand from these and the result's gradient.
        arity: number of operands.
        low, high: range of operands.
        by_element: True if elements are independent, so that each must be right.
    """

    call: Callable[..., Any]
    value: Callable[..., Any]
    gradients: Callable[..., Sequence[Any]]
    arity: int = 1
    low: float = -math.inf
    high: float = math.inf
    by_element: bool = True


def logistic(x: Array) -> Array:
    """Return 1 / (1 + exp(-x))."""
    e = np.exp(-np.abs(x))
    return np.where(x > 0, 1 / (1 + e), e / (1 + e))


def _map(call: Any, value: Any, slope: Any, **rest: Any) -> Formula:
    return Formula(call, value, lambda x, dy: (dy * slope(x),), **rest)


def _to_scalar(call: Any, value: Any, gradients: Any, arity: int = 1, **rest: Any) -> Formula:
    return Formula(call, value, gradients, arity, by_element=False, **rest)


def _row(x: Array) -> Array:
    return x[:, None]


def _log_total(x: Array) -> tuple[Array, Array]:
    """Return each row's maximum, and the logarithm of the row's sum of exp(x - maximum)."""
    top, best = x.max(1, keepdims=True), x.argmax(1)
    terms = np.exp(x - top)
    terms[np.arange(len(x)), best] = 0
    return top, np.log1p(terms.sum(1, keepdims=True))


def _log_softmax(x: Array) -> Array:
    top, rest = _log_total(x)
    return (x - top) - rest


def _less_one(x: Array) -> Array:
    """Return 1 - softmax(x), from the sum of the other elements."""
    p = np.exp(_log_softmax(x))
    return np.stack([np.delete(p, u, axis=1).sum(1) for u in range(x.shape[1])], axis=1)


def _cross_entropy(label: int) -> Formula:
    def gradients(x: Array, dy: Array) -> tuple[Array]:
        d = np.exp(_log_softmax(x))
        d[:, label] = -_less_one(x)[:, label]
        return (d * dy,)

    return _to_scalar(lambda x: vpps.cross_entropy(x, label), lambda x: -_log_softmax(x)[:, [label]], gradients)


def _softmax_gradient(x: Array, dy: Array) -> tuple[Array]:
    p = np.exp(_log_softmax(x))
    d = np.zeros_like(x)
    for j in range(x.shape[1]):  # sum over j of p_j (dy_i - dy_j): equal terms cancel exactly
        d += p[:, [j]] * (dy - dy[:, [j]])
    return (p * d,)


def _log_softmax_gradient(x: Array, dy: Array) -> tuple[Array]:
    p, others = np.exp(_log_softmax(x)), np.stack([np.delete(dy, u, axis=1).sum(1) for u in range(x.shape[1])], axis=1)
    return (dy * _less_one(x) - p * others,)


def _at(x: Array, where: Any, dy: Array) -> Array:
    d = np.zeros_like(x)
    d[np.arange(len(x)), where] = dy[:, 0]
    return d


def _norm(x: Array) -> Array:
    return _row(np.sqrt((x * x).sum(1)))


def _cosine(a: Array, b: Array) -> Any:
    return _row((a * b).sum(1)) / np.maximum(_norm(a) * _norm(b), 1e-8)


def _cosine_gradients(a: Array, b: Array, dy: Array) -> tuple[Array, Array]:
    norms = _norm(a) * _norm(b)
    free, y = norms > 1e-8, _cosine(a, b)
    scale = dy / np.maximum(norms, 1e-8)

    def along(x: Array) -> Array:
        return np.where(free, dy * y / np.where(free, _norm(x), 1) ** 2, 0) * x

    return scale * b - along(a), scale * a - along(b)


def _hinge_gradient(x: Array, dy: Array) -> tuple[Array]:
    d = (x - x[:, [1]] + 1 > 0) * dy
    d[:, 1] = -(d.sum(1) - d[:, 1])
    return (d,)


def _hinge(x: Array) -> Array:
    return _row(np.delete(np.maximum(x - x[:, [1]] + 1, 0), 1, axis=1).sum(1))


def _bce(x: Array, t: Array) -> Array:
    weight = np.where(x > 0, 1 - t, t)
    return _row((np.where(weight == 0, 0, np.abs(x) * weight) + np.log1p(np.exp(-np.abs(x)))).mean(1))


def _bce_gradients(x: Array, t: Array, dy: Array) -> tuple[Array, Array]:
    d = np.where(x > 0, (1 - t) - logistic(-x), logistic(x) - t)
    return dy * d / x.shape[1], -dy * x / x.shape[1]


def _layer_norm_parts(x: Array) -> tuple[Array, Array]:
    centred = x - x.mean(1, keepdims=True)
    return centred, np.sqrt((centred**2).mean(1, keepdims=True) + np.longdouble(np.float32(1e-5)))


def _layer_norm_gradient(x: Array, dy: Array) -> tuple[Array]:
    centred, deviation = _layer_norm_parts(x)
    y = centred / deviation
    return ((dy - dy.mean(1, keepdims=True) - y * (dy * y).mean(1, keepdims=True)) / deviation,)


def _gate(x: Array) -> Any:
    return 2 * np.sqrt(2 / np.longdouble(np.pi)) * (x + np.longdouble("0.044715") * x**3)


def _gelu_slope(x: Array) -> Any:
    inner = 2 * np.sqrt(2 / np.longdouble(np.pi)) * (1 + 3 * np.longdouble("0.044715") * x * x)
    return logistic(_gate(x)) + x * inner * logistic(_gate(x)) * logistic(-_gate(x))


def _exp_or_0(x: Array) -> Array:
    return np.exp(np.minimum(x, 0))


def _kl(log_q: Array, p: Array) -> Array:
    return _row(np.where(p > 0, p * (np.log(np.where(p > 0, p, 1)) - log_q), 0).sum(1))


def _kl_gradients(log_q: Array, p: Array, dy: Array) -> tuple[Array, Array]:
    return -dy * p, dy * np.where(p > 0, np.log(np.where(p > 0, p, 1)) + 1 - log_q, 0)


FORMULAS: dict[str, Formula] = {
    # Slopes are computed from the rounded result, as in PyTorch; beyond these bounds it has too few digits.
    "tanh": _map(vpps.tanh, np.tanh, lambda x: 4 * logistic(2 * x) * logistic(-2 * x), low=-4, high=4),
    "sigmoid": _map(vpps.sigmoid, logistic, lambda x: logistic(x) * logistic(-x), high=6),
    "relu": _map(vpps.relu, lambda x: np.maximum(x, 0), lambda x: x > 0),
    "exp": _map(vpps.exp, np.exp, np.exp, high=90),
    "log": _map(vpps.log, np.log, lambda x: 1 / x, low=0),
    "square": _map(lambda x: x**2, lambda x: x * x, lambda x: 2 * x),
    "sqrt": _map(vpps.sqrt, np.sqrt, lambda x: 0.5 / np.sqrt(x), low=0),
    "abs": _map(vpps.abs, np.abs, np.sign),
    "elu": _map(
        lambda x: vpps.elu(x, 1.5),
        lambda x: np.where(x > 0, x, 1.5 * np.expm1(np.minimum(x, 0))),
        lambda x: np.where(x > 0, 1, 1.5 * _exp_or_0(x)),
    ),
    "leaky_relu": _map(
        lambda x: vpps.leaky_relu(x, 0.25), lambda x: np.where(x > 0, x, x / 4), lambda x: np.where(x > 0, 1, 0.25)
    ),
    "softplus": _map(vpps.softplus, lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), logistic),
    "gelu": _map(vpps.gelu, lambda x: x * logistic(_gate(x)), _gelu_slope),
    "silu": _map(vpps.silu, lambda x: x * logistic(x), lambda x: logistic(x) + x * logistic(x) * logistic(-x)),
    "sin": _map(vpps.sin, np.sin, np.cos, low=-1e15, high=1e15),
    "cos": _map(vpps.cos, np.cos, lambda x: -np.sin(x), low=-1e15, high=1e15),
    "clamp": _map(lambda x: vpps.clamp(x, -1, 2), lambda x: np.clip(x, -1, 2), lambda x: (x > -1) & (x < 2)),
    "mul": Formula(lambda a, b: a * b, np.multiply, lambda a, b, dy: (dy * b, dy * a), 2),
    "div": Formula(lambda a, b: a / b, np.divide, lambda a, b, dy: (dy / b, -dy * a / (b * b)), 2),
    "maximum": Formula(vpps.maximum, np.maximum, lambda a, b, dy: (dy * (a >= b), dy * (a < b)), 2),
    "minimum": Formula(vpps.minimum, np.minimum, lambda a, b, dy: (dy * (a <= b), dy * (a > b)), 2),
    "softmax": Formula(vpps.softmax, lambda x: np.exp(_log_softmax(x)), _softmax_gradient, by_element=False),
    "log_softmax": Formula(vpps.log_softmax, _log_softmax, _log_softmax_gradient, by_element=False),
    "cross_entropy 0": _cross_entropy(0),
    "cross_entropy 1": _cross_entropy(1),
    "logsumexp": _to_scalar(
        vpps.logsumexp, lambda x: sum(_log_total(x)), lambda x, dy: (dy * np.exp(_log_softmax(x)),)
    ),
    "sum": _to_scalar(
        vpps.Cell(lambda x: vpps.sum(x)), lambda x: _row(x.sum(1)), lambda x, dy: (dy + 0 * x,), low=-1e37, high=1e37
    ),
    "mean": _to_scalar(
        vpps.Cell(lambda x: vpps.mean(x)),
        lambda x: _row(x.mean(1)),
        lambda x, dy: (dy / x.shape[1] + np.zeros_like(x),),
    ),
    "max": _to_scalar(
        vpps.Cell(lambda x: vpps.max(x)), lambda x: _row(x.max(1)), lambda x, dy: (_at(x, x.argmax(1), dy),)
    ),
    "min": _to_scalar(
        vpps.Cell(lambda x: vpps.min(x)), lambda x: _row(x.min(1)), lambda x, dy: (_at(x, x.argmin(1), dy),)
    ),
    "pick": _to_scalar(lambda x: vpps.pick(x, 1), lambda x: x[:, [1]], lambda x, dy: (_at(x, 1, dy),)),
    "hinge": _to_scalar(vpps.Cell(lambda x: vpps.hinge(x, 1)), _hinge, _hinge_gradient),
    "dot": _to_scalar(
        vpps.dot, lambda a, b: _row((a * b).sum(1)), lambda a, b, dy: (dy * b, dy * a), 2, low=-1e18, high=1e18
    ),
    "mse": _to_scalar(
        vpps.mse,
        lambda a, b: _row(((a - b) ** 2).mean(1)),
        lambda a, b, dy: (2 * dy * (a - b) / a.shape[1], 2 * dy * (b - a) / a.shape[1]),
        2,
    ),
    "squared_distance": _to_scalar(
        vpps.squared_distance,
        lambda a, b: _row(((a - b) ** 2).sum(1)),
        lambda a, b, dy: (2 * dy * (a - b), 2 * dy * (b - a)),
        2,
    ),
    "cosine": _to_scalar(vpps.cosine, _cosine, _cosine_gradients, 2),
    "bce": _to_scalar(lambda x, t: vpps.binary_cross_entropy_with_logits(x, t), _bce, _bce_gradients, 2),
    "kl_div": _to_scalar(vpps.kl_div, _kl, _kl_gradients, 2),
    "layer_norm": Formula(
        vpps.layer_norm, lambda x: np.divide(*_layer_norm_parts(x)), _layer_norm_gradient, by_element=False
    ),
}
for _c in CONSTANTS:
    c = np.longdouble(_c)
    FORMULAS |= {
        f"x * {_c}": _map(lambda x, c=_c: x * c, lambda x, c=c: x * c, lambda x, c=c: c),
        f"x / {_c}": _map(lambda x, c=_c: x / c, lambda x, c=c: x / c, lambda x, c=c: 1 / c),
        f"{_c} / x": _map(lambda x, c=_c: c / x, lambda x, c=c: c / x, lambda x, c=c: -c / (x * x)),
    }
FRACTIONS = {"bce": 1, "kl_div": 1}  # index of the operand that is a fraction
MASKED = (
    *("softmax", "log_softmax", "cross_entropy 0", "cross_entropy 1", "logsumexp", "max", "maximum", "minimum", "relu"),
    *("exp", "sigmoid", "tanh", "softplus", "elu", "gelu", "silu", "hinge", "clamp"),
)
"""Ops for which minus infinity is an ordinary operand."""


def operands(random: np.random.Generator, name: str, n: int, width: int) -> list[Array]:
    """Return rows of float32, each of one kind: all magnitudes, one magnitude, a common offset, equal, masked."""
    formula = FORMULAS[name]
    found = []
    for k in range(formula.arity):
        shape = (n, width)
        sign = random.choice([-1.0, 1.0], shape)
        x = sign * 10 ** random.uniform(-44, 38, shape)
        kind = random.integers(7, size=(n, 1))
        with np.errstate(over="ignore"):
            x = np.where(kind == 1, sign * 10.0 ** random.uniform(-44, 38, (n, 1)) * random.uniform(0.5, 2, shape), x)
            x = np.where(kind == 2, random.normal(size=shape) + 10.0 ** random.uniform(-3, 10, (n, 1)), x)
            x = np.where(kind == 3, x[:, :1], x)
            x = np.where(kind == 4, random.normal(size=shape) * 10.0 ** random.uniform(-2, 2.5, (n, 1)), x)
            x = np.where(kind == 5, random.uniform(0, 110, (n, 1)) * sign, x)
        if name == "layer_norm":
            x = np.where(np.abs(x) < 1e-35, 0, x)  # denormal differences, times 1 / sqrt(eps)
        if name in MASKED:
            x = np.where((kind == 6) & (random.uniform(size=shape) < 0.4), -np.inf, x)
            if not formula.by_element:
                x[:, -1] = np.where(np.isinf(x[:, -1]), 1.0, x[:, -1])
        if FRACTIONS.get(name) == k:
            x = np.where(kind < 3, random.integers(2, size=shape), np.minimum(np.abs(x), 1 - 2.0**-24))
        if formula.low == 0:
            x = np.where(x == 0, 1.0, np.abs(x))
        x = np.where(x == -np.inf, x, np.clip(x, np.maximum(formula.low, -LARGEST), np.minimum(formula.high, LARGEST)))
        with np.errstate(over="ignore"):
            x = x.astype(np.float32)
        if "/" in name or name == "div" or formula.low == 0:
            x = np.where(x == 0, np.float32(1), x)
        found.append(x)
    return found


def wrong(got: Array, expected: Array, moved: Array, tolerance: float, by_element: bool) -> Array:
    """Return the rows whose error exceeds the tolerance and the effect of rounding the operands."""
    with np.errstate(all="ignore"):
        got = got.astype(np.longdouble)
        whole = np.isfinite(expected) & (np.abs(expected) <= LARGEST * 1.001)
        inf_ok = ~whole & (
            np.isnan(expected) | ((np.sign(got) == np.sign(expected)) & (np.abs(got) >= LARGEST * 0.999))
        )
        near = whole & np.isinf(got) & (np.sign(got) == np.sign(expected)) & (np.abs(expected) >= LARGEST * 0.999)
        ok = inf_ok | near
        error = np.where(ok, 0, np.abs(got - np.where(whole, expected, 0)))
        size_ = np.where(whole, np.abs(expected), 0)
        moved = np.where(np.isfinite(moved), moved, 0)
        if not by_element:
            error, size_, moved = (np.sqrt((a * a).sum(1)) for a in (error, size_, moved))
        bad = ~(error <= tolerance * size_ + 4 * moved + FLOOR)
    return np.flatnonzero(bad if bad.ndim == 1 else bad.any(1))


@dataclass(frozen=True)
class Magnitudes:
    """Rows of operands of one op.

    Attributes:
        name: name of the op.
        seed: seed for the operands and the result's gradient.
        width, n: length and number of rows.
        form: "rows", or "cell" of rows, which scales the result by 1.
        target: "cpu" or "simt".
    """

    name: str
    seed: int
    width: int = 5
    n: int = 40
    form: str = "rows"
    target: str = "cpu"

    def program(self) -> list[str]:
        """Return the arguments that repeat the case."""
        return ["from tests.fuzz.magnitudes import Magnitudes", f"{self!r}.check()"]

    def check(self) -> None:
        """Raise Finding if a value or a gradient is wrong."""
        texts = self.findings()
        if texts:
            raise Finding(texts[0], self.program())

    def findings(self) -> list[str]:
        """Return one text for each wrong tensor."""
        formula, random = FORMULAS[self.name], np.random.default_rng(self.seed)
        xs = operands(random, self.name, self.n, self.width)
        graph = vpps.Graph()
        given = [graph.rows(x, grad=True) for x in xs]
        call = formula.call if self.form == "rows" else vpps.Cell(lambda *xs: formula.call(*xs) * 1.0)
        y = call(*given)
        dy = _seeds(random, self.name, (self.n, *y.shape))
        with vpps.Handle(vpps.Model(), target=self.target) as handle:
            (got,) = handle.forward(graph, [y], train=True, keep=True)
            handle.backward([dy])
            gradients = [handle.input_gradient(x) for x in given]
        with np.errstate(all="ignore"):
            return list(self._compare(random, xs, dy, np.asarray(got), gradients))

    def _compare(
        self, random: np.random.Generator, xs: list[Array], dy: Array, got: Array, gradients: list[Array]
    ) -> Iterator[str]:
        formula = FORMULAS[self.name]
        exact = [x.astype(np.longdouble) for x in xs]
        d = dy.astype(np.longdouble).reshape(self.n, -1)

        def off(x: Array) -> Array:
            return x * (1 + 1e-7 * random.choice([-1, 1], x.shape))

        def tell(what: str, got: Array, expected: Array, others: list[Array], tolerance: float, noise: Any) -> Any:
            moved = np.max([np.abs(o - expected) for o in others], axis=0) + noise
            for r in wrong(got.reshape(self.n, -1), expected, moved, tolerance, formula.by_element)[:1]:
                yield (
                    f"{self.name}: {what}: of {[x[r].tolist() for x in xs]} with {dy[r].tolist()} it is "
                    f"{got[r].tolist()}, not {expected[r].astype(float).tolist()}"
                )

        sign = 1 - 2 * (np.arange(self.width) % 2)
        near = [[off(x) for x in exact] for _ in range(6)]
        near += [[x * (1 + 1e-7 * s) for x, s in zip(exact, (sign, t * sign), strict=False)] for t in (1, -1)]
        value = formula.value(*exact)
        yield from tell("value", got, value, [formula.value(*x) for x in near], 1e-5, 0)
        others = [formula.gradients(*x, off(d)) for x in near]
        for k, of_one in enumerate(formula.gradients(*exact, d)):
            expected = of_one + np.zeros_like(exact[k])
            if formula.by_element:
                expected = np.where(np.abs(value) > LARGEST, np.nan, expected)  # the loss is infinite
            noise: Any = 0  # product of two roundings, if everything else cancels
            if self.name == "div" or self.name.endswith("/ x"):
                noise = 1e-45 * np.abs(d / exact[-1])  # of a denormal result
            if self.name == "cosine":
                noise = 1e-13 * np.abs(d) / _norm(exact[k])
            if self.name == "layer_norm":
                noise = 1e-12 * np.abs(d).max(1, keepdims=True) / _layer_norm_parts(exact[k])[1]
            yield from tell(f"gradient {k}", gradients[k], expected, [o[k] for o in others], 1e-4, noise)


def _seeds(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> Array:
    """Return gradients of results: about 1 or 10, and of any magnitude if the op's slope is not exponential."""
    rows = (shape[0],) + (1,) * (len(shape) - 1)
    dy = random.choice([-1.0, 1.0], shape) * 10 ** random.integers(2, size=rows) * random.uniform(0.5, 2, shape)
    wide = random.uniform(size=rows) < 0.2 * (name not in (*MASKED, "layer_norm"))
    return np.where(wide, dy * 10.0 ** random.uniform(-6, 6, shape), dy).astype(np.float32)


def draw(random: Random) -> Magnitudes:
    """Draw a random case."""
    name, width = random.choice(list(FORMULAS)), random.choice((2, 5, 5, 33, 64))
    form = random.choice(("rows", "cell"))
    return Magnitudes(name, random.randrange(10**6), width, random.choice((1, 40, 200)), form)
