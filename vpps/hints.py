"""Adds hints to errors: for a name from another library, its vpps equivalent from the table in `habits.py`."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from itertools import product
from operator import attrgetter
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from vpps import habits
from vpps.errors import HandleError

F = TypeVar("F", bound=Callable[..., Any])


FORMULAS = """
logistic expit: vpps.sigmoid(x)
rectify: vpps.relu(x)
swish: vpps.silu(x)
nobackprop: vpps.stop_gradient(x)
flip_gradient: 2 * vpps.stop_gradient(x) - x
scale_gradient: 0.1 * x + 0.9 * vpps.stop_gradient(x) | for a factor of 0.1
cmult mul multiply: x * y
cdiv div divide true_divide: x / y
add: x + y
sub subtract: x - y
neg negative: -x
not_equal ne: 1 - vpps.eq(x, y)
logical_and: x * y | of two conditions
logical_or: vpps.maximum(x, y) | of two conditions
logical_not: vpps.eq(x, 0)
sign sgn: (x > 0) - (x < 0)
esum add_n: vpps.sum(xs)
average: vpps.mean(xs)
emax: vpps.max(xs)
bmax: vpps.maximum(x, y)
bmin: vpps.minimum(x, y)
sum_elems reduce_sum: vpps.sum(x)
mean_elems reduce_mean: vpps.mean(x)
reduce_max amax: vpps.max(x)
reduce_min amin: vpps.min(x)
sum_dim sum_cols sum_rows: vpps.sum([A[k] for k in range(A.shape[0])]) | over the rows; of A.T over the columns
mean_dim: vpps.mean([A[k] for k in range(A.shape[0])]) | over the rows; of A.T over the columns
max_dim: vpps.max([A[k] for k in range(A.shape[0])]) | over the rows; of A.T over the columns
min_dim: vpps.min([A[k] for k in range(A.shape[0])]) | over the rows; of A.T over the columns
var variance moment_elems: vpps.mean(vpps.square(x - vpps.mean(x))) | divided by n, not n - 1
std std_elems: vpps.norm(x - vpps.mean(x)) / x.shape[0] ** 0.5 | divided by n, not n - 1
squared_norm: vpps.dot(x, x)
l2_norm: vpps.norm(x)
normalize l2_normalize: x / vpps.clamp(vpps.norm(x), 1e-12)
dot_product inner vdot: vpps.dot(x, y)
trace_of_product: vpps.sum(A * B)
l1_distance: vpps.sum(abs(x - y))
dist pairwise_distance PairwiseDistance: vpps.norm(x - y)
cosine_similarity CosineSimilarity: vpps.cosine(x, y)
mse_loss: vpps.mse(x, y)
l1_loss L1Loss: vpps.mean(abs(x - y))
huber_loss huber_distance smooth_l1_loss HuberLoss SmoothL1Loss: vpps.mean(vpps.clamp(abs(x - y), high=1) * (abs(x - \
y) - vpps.clamp(abs(x - y), high=1) / 2)) | with delta=1; vpps.sum in place of vpps.mean adds up
poisson_loss poisson_nll_loss PoissonNLLLoss: vpps.mean(vpps.exp(x) - y * x) | of logarithms x
binary_log_loss binary_cross_entropy BCELoss: vpps.binary_cross_entropy_with_logits(x, y) | of x before the sigmoid
pairwise_rank_loss margin_ranking_loss MarginRankingLoss: vpps.relu(1 - x + y)
soft_margin_loss SoftMarginLoss: vpps.mean(vpps.softplus(-y * x))
pickneglogsoftmax nll_loss NLLLoss: vpps.cross_entropy(x, i) | of x before the softmax
multi_margin_loss MultiMarginLoss: vpps.hinge(x, i) / x.shape[0]
cube: x * x * x
rsqrt: 1 / vpps.sqrt(x)
reciprocal: 1 / x
exp2: vpps.exp(x * 0.6931471805599453)
log2: vpps.log(x) * 1.4426950408889634
log10: vpps.log(x) * 0.4342944819032518
expm1: vpps.where(x > 0, -vpps.elu(-x) * vpps.exp(x), vpps.elu(x))
log1p: vpps.softplus(vpps.log(x)) | of positive x
logit: vpps.log(x / (1 - x)) | of x between 0 and 1
logaddexp: vpps.logsumexp([x, y])
tan: vpps.sin(x) / vpps.cos(x)
cosh: (vpps.exp(x) + vpps.exp(-x)) / 2
softsign soft_sign Softsign: x / (1 + abs(x))
log_sigmoid logsigmoid LogSigmoid: -vpps.softplus(-x)
selu SELU: 1.0507009873554805 * vpps.elu(x, 1.6732632423543772)
celu CELU: vpps.elu(x)
relu6 ReLU6: vpps.clamp(x, 0, 6)
hardtanh hard_tanh Hardtanh: vpps.clamp(x, -1, 1)
hardsigmoid hard_sigmoid Hardsigmoid: vpps.clamp(x / 6 + 0.5, 0, 1)
hardswish hard_swish Hardswish: x * vpps.clamp(x / 6 + 0.5, 0, 1)
hardshrink Hardshrink: vpps.where(abs(x) > 0.5, x, 0)
softshrink Softshrink: x - vpps.clamp(x, -0.5, 0.5)
mish Mish: x * vpps.tanh(vpps.softplus(x))
glu GLU: vpps.split(x, 2)[0] * vpps.sigmoid(vpps.split(x, 2)[1])
prelu PReLU: vpps.relu(x) - y * vpps.relu(-x) | with slopes y
softmin Softmin: vpps.softmax(-x)
pick_range pickrange narrow: x[1:3]
concatenate cat hstack: vpps.concat(xs)
concatenate_cols column_stack: vpps.stack(xs).T
vstack: vpps.stack(xs)
colwise_add: (A.T + x).T
affine_transform addmv addmm: A @ x + y
mm mv matmul bmm: A @ x
bilinear_form: vpps.bilinear(x, A, y)
"""
"""Names of other libraries, each with its formula in vpps: vectors x and y, a list xs of vectors, matrices A and B, a
label i. The text behind "|" is a condition of the formula."""


def _by_name(table: str) -> dict[tuple[str, str], str]:
    for phrase, text in habits.PHRASES.items():
        table = table.replace(phrase, text)
    found: dict[tuple[str, str], str] = {}
    owners: list[str] = []
    for line in table.strip().splitlines():
        if line.startswith("["):
            owners = line.strip("[]").split()
        names, _, hint = line.partition(": ")
        for owner, name in product(owners, names.split() if hint else ()):
            found[owner, name] = hint.replace("{name}", name).replace("{owner}", owner)
    return found


def _formulas() -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    for line in FORMULAS.strip().splitlines():
        names, _, formula = line.partition(": ")
        formula, _, given = formula.partition(" | ")
        owners = ("vpps", "vpps.nn") if "xs" in formula else ("vpps", "vpps.nn", "Expression", "Rows", "Parameter")
        hint = f"it is {formula}" + (f", {given}" if given else "")
        found |= dict.fromkeys(product(owners, names.split()), hint)
    return found


HINTS = _by_name(habits.NAMES) | _formulas()
"""Hints by class or package, and name."""

ARGUMENTS = _by_name(habits.ARGUMENTS)
"""Hints by class, function or method, and keyword."""

VALUES = _by_name(habits.OPTIONS)
"""Hints by option, and a word in its value."""


def habit(option: str, value: object) -> str:
    """Return the hint for an option's value that another library accepts, or "" if there is none."""
    words = re.findall(r"\w+", str(value).lower())
    return next((f"; {VALUES[option, word]}" for word in words if (option, word) in VALUES), "")


def hinted(function: F) -> F:
    """Add the hint for a wrong call to the function's TypeError. Raise HandleError for an argument whose hint in
    `habits.py` begins with "removed"."""
    owner = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
    hints = {name: hint for (of, name), hint in ARGUMENTS.items() if of == owner}

    def called(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except TypeError as error:
            names = options if "unexpected keyword" in str(error) else "-"
            name = next((name for name in names if name in hints), None)
            if name is None or (error.__traceback__ and error.__traceback__.tb_next):  # raised inside the function
                raise
            hint = hints[name]
            if hint.startswith("removed"):
                raise HandleError(f"{owner}({name}=...): {hint}") from None
            raise TypeError(f"{owner}{str(error).removeprefix(function.__qualname__)}; {hint}") from None
        except AttributeError as error:
            if len(arguments) < 2 or error.obj is not arguments[1] or "-" not in hints:
                raise
            raise TypeError(f"{owner}({arguments[1]!r}, ...): {hints['-']}") from None

    # Sphinx resolves an overload's type hints in the documented object's globals: use the function's globals.
    made = FunctionType(called.__code__, function.__globals__, closure=called.__closure__)
    return wraps(function)(made)  # type: ignore[return-value]


_SET = frozenset("bias betas clip data grad learning_rate lr requires_grad weight".split())
"""Names that users also assign: an object with a `__dict__` would accept them silently."""


class Hinting:
    """Base class that raises errors with hints when a user reads or assigns another library's attribute."""

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in _SET:
            if (cls.__name__, name) in HINTS and cls.__module__.startswith("vpps."):
                setattr(cls, name, _Unsettable(name))

    if not TYPE_CHECKING:  # editors and type checkers must report an unknown attribute

        def __getattr__(self, name: str) -> Any:
            if (hint := hint_of(type(self), name) or self._hint_of(name)) is None:
                return object.__getattribute__(self, name)  # raises again, with Python's message
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}; {hint}")

    def _hint_of(self, name: str) -> str | None:
        """Return this object's own hint for a name, or None."""
        return None


def read_only(slot: str, doc: str) -> Any:
    """Return a property that reads a slot, or "slot.attribute", and cannot be set: values checked at construction stay
    valid."""
    return property(attrgetter(slot), doc=doc)


class _Unsettable:
    """Descriptor that refuses assignment. A user's subclass may have an attribute of that name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, x: Any, kind: type) -> Any:
        try:
            return vars(x)[self._name]
        except (KeyError, TypeError):
            raise AttributeError(self._name) from None  # Python then calls __getattr__

    def __set__(self, x: Any, value: object) -> None:
        if type(x).__module__.startswith("vpps.") or not hasattr(x, "__dict__"):
            raise AttributeError(f"{x!r}.{self._name} cannot be set; {hint_of(type(x), self._name)}")
        vars(x)[self._name] = value


def missing_from(package: str, name: str) -> AttributeError:
    """Return the error for a name that a package lacks, with its hint if there is one."""
    hint = f"; {HINTS[package, name]}" if (package, name) in HINTS else ""
    return AttributeError(f"module {package!r} has no attribute {name!r}{hint}")


def hint_of(kind: type, name: str) -> str | None:
    """Return the hint for a name in another library, or None if there is none, or if a user's subclass has a property
    of that name: the property raises its own error."""
    for base in kind.__mro__:
        if (base.__name__, name) in HINTS:
            return HINTS[base.__name__, name]
        if name in vars(base):
            break
    return None
