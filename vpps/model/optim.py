"""Optimizers: hyper-parameters, NumPy reference, and the device formula that runs at the end of a launch."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from vpps.errors import ModelError
from vpps.hints import Hinting, hinted
from vpps.text import dir_without
from vpps.values import MAX_FLOAT32, as_number, said_of

__all__ = ["Optimizer", "SGD", "Momentum", "Nesterov", "Adam", "AdamW", "Adagrad", "RMSprop"]  # noqa: RUF022 (numbered so)

Array = NDArray[Any]
Schedule = Callable[[int], float]

# Order of the floats that an update instruction reads; the kernel's struct Hyper is generated from it.
# The complements are 1 - beta, rounded once: 1 - 0.999 in single precision would keep only five digits.
HYPER = tuple("lr weight_decay beta1 complement1 beta2 complement2 eps step_size inv_sqrt_correction".split())

# With these values and a gradient of zero, no rule changes any bit of the weights or moments.
IDLE = array("f", [{"beta1": 1, "beta2": 1, "eps": 1, "inv_sqrt_correction": 1}.get(name, 0) for name in HYPER])

_Range = tuple[str, Callable[[float], bool]]
_NOT_NEGATIVE: _Range = ("a number >= 0", lambda v: v >= 0)
_BELOW_ONE: _Range = ("a number in [0, 1)", lambda v: v >= 0 and float(np.float32(v)) < 1)
RANGES: dict[str, _Range] = {
    **dict.fromkeys(("lr", "weight_decay"), _NOT_NEGATIVE),
    **dict.fromkeys(("momentum", "beta1", "beta2", "rho"), _BELOW_ONE),
    "eps": ("a positive number", lambda v: float(np.float32(v)) > 0),
}
"""Valid range of each hyper-parameter: its description and a predicate."""

_GROUPS = "hyper-parameters by pattern of names, such as groups={'words': {'lr': 0.01}}"


@dataclass
class OptimizerState:
    """Moments of an optimizer, owned by the Model.

    Attributes:
        optimizer: name of the optimizer. A different optimizer starts with new moments.
        moments: for each moment ("m", "v"), arrays by parameter name.
        counts: number of steps taken with these moments, by parameter name; bias correction uses it.
    """

    optimizer: str
    moments: dict[str, dict[str, NDArray[np.float32]]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True, weakref_slot=True)
class Optimizer(Hinting):
    """Base class, with `lr` and `weight_decay` (added to the gradient, L2). All fields may change between `fb` calls.

    Lookup tables are updated lazily: rows that a batch does not use keep their values and moments, and do not decay.
    Bias correction counts each parameter's steps, as in PyTorch. For a table, it counts steps that use any of its rows.

    Args:
        lr: learning rate, or a schedule: a function of the update's number, from 1.
        groups: hyper-parameters for parameters whose names match a pattern (`fnmatch`; the first match applies):
            `groups={"words": {"lr": 0.01}, "*/b": {"weight_decay": 0.0}}`. A pattern that matches nothing is an error.
    """

    lr: float | Schedule
    weight_decay: float = 0.0
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, kw_only=True)

    name: ClassVar[str] = ""
    moments: ClassVar[tuple[str, ...]] = ()
    device: ClassVar[str] = ""
    corrects: ClassVar[bool] = False  # True if the rule corrects bias by the number of steps

    __dir__ = dir_without("at check check_groups corrects device group_of hyper moments rate reference")

    def __post_init__(self) -> None:
        self._check_lr()  # only the type; the handle checks ranges

    def _check_lr(self) -> None:
        lr = self.lr
        if isinstance(lr, Hinting) or (as_number(lr) is None and not callable(lr)):  # a Model is callable
            name = type(self).__name__
            raise ModelError(
                f"{name}(lr={lr!r}): expected a number >= 0, or a function of the number of the update; pass the model "
                f"to the handle: vpps.Handle(model, vpps.{name}(lr=0.01))"
            )

    def check(self) -> None:
        """Raise ModelError if a hyper-parameter is out of range, or a group sets an unknown one."""
        self._check_lr()
        for name in self.__dataclass_fields__:
            if name in RANGES and not (name == "lr" and callable(self.lr)):
                self._require(name)
        if type(self.groups) is not dict and not isinstance(self.groups, Mapping):  # fast test first: runs every step
            raise ModelError(f"{type(self).__name__}(groups={self.groups!r}): expected {_GROUPS}")
        known = {f.name for f in fields(self)} - {"groups"} if self.groups else set()
        for pattern, values in self.groups.items():
            if not isinstance(pattern, str) or not isinstance(values, Mapping):
                raise ModelError(f"{type(self).__name__}(groups={{{pattern!r}: {values!r}}}): expected {_GROUPS}")
            unknown = set(values) - known
            if unknown:
                raise ModelError(
                    f"{type(self).__name__}: group {pattern!r} sets {', '.join(sorted(map(str, unknown)))}; "
                    f"hyper-parameters are {', '.join(sorted(known))}"
                )
            replace(self, groups={}, **values).check()

    def check_groups(self, parameters: Collection[str]) -> None:
        """Raise ModelError if a group contains none of the named parameters."""
        used = {self.group_of(name) for name in parameters} if self.groups else {}
        for pattern in (p for p in self.groups if p not in used):
            found = next((name for name in parameters if fnmatchcase(name, pattern)), None)
            why = (
                f"no parameter of the model fits it; {said_of(pattern, parameters)}"
                if found is None
                else f"{found!r} and all others that fit it belong to {self.group_of(found)!r}, which comes before it: "
                "the first matching pattern applies"
            )
            raise ModelError(f"{type(self).__name__}: group {pattern!r}: {why}")

    def group_of(self, parameter: str) -> str | None:
        """Return the first group's pattern that matches a parameter's name, or None."""
        return next((pattern for pattern in self.groups if fnmatchcase(parameter, pattern)), None)

    def at(self, update: int, parameter: str) -> Self:
        """Return the rule for one parameter at update `update`, with its group's values and the schedule's rate.

        Raises ModelError if the schedule does not return a number >= 0.
        """
        if not self.groups and not callable(self.lr):
            return self
        group = self.group_of(parameter)
        rule = replace(self, groups={}, **(self.groups[group] if group is not None else {}))
        if callable(rule.lr):
            rule = replace(rule, lr=rule.lr(update))
            rule._require("lr")
        return rule

    @property
    def rate(self) -> float:
        """The learning rate of a rule without a schedule, such as a result of `at`."""
        assert not callable(self.lr)
        return self.lr

    def _require(self, name: str) -> None:
        value = getattr(self, name)
        expected, holds = RANGES[name]
        number = as_number(value)
        if number is None or not abs(number) <= MAX_FLOAT32 or not holds(number):
            raise ModelError(f"{type(self).__name__}({name}={value!r}): expected {expected}")

    def hyper(self, step: int) -> array[float]:
        """Return the floats of `HYPER` for the parameter's update number `step` (from 1)."""
        values = {"lr": self.rate, "weight_decay": self.weight_decay, **self._extra(step)}
        return array("f", [values.get(k, 0.0) for k in HYPER])

    def _extra(self, step: int) -> dict[str, float]:
        return {}

    def reference(self, w: Array, g: Array, moments: Sequence[Array], step: int) -> tuple[Array, list[Array]]:
        """Return new weights and moments, float64; `g` is the (clipped) gradient without decay."""
        raise NotImplementedError


@dataclass(slots=True)
class SGD(Optimizer):
    """w -= lr * (g + weight_decay * w)."""

    name, device = "sgd", "Sgd"

    def reference(self, w: Array, g: Array, moments: Sequence[Array], step: int) -> tuple[Array, list[Array]]:
        return w - self.rate * (g + self.weight_decay * w), []


@dataclass(slots=True)
class Momentum(Optimizer):
    """m = momentum * m + g + weight_decay * w;  w -= lr * m (Polyak's heavy ball)."""

    momentum: float = 0.9

    moments = ("m",)
    name, device = "momentum", "HeavyBall"

    def _extra(self, step: int) -> dict[str, float]:
        return {"beta1": self.momentum}

    def reference(self, w: Array, g: Array, moments: Sequence[Array], step: int) -> tuple[Array, list[Array]]:
        m = self.momentum * moments[0] + g + self.weight_decay * w
        return w - self.rate * m, [m]


@dataclass(slots=True)
class Adam(Optimizer):
    """Adam (Kingma & Ba 2015) with bias correction; decay is added to the gradient."""

    lr: float | Schedule = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    moments = ("m", "v")
    name, device, corrects = "adam", "Adam", True

    def _extra(self, step: int) -> dict[str, float]:
        return {
            "beta1": self.beta1,
            "complement1": 1 - self.beta1,
            "beta2": self.beta2,
            "complement2": 1 - self.beta2,
            "eps": self.eps,
            "step_size": self.rate / (1 - self.beta1**step),
            "inv_sqrt_correction": (1 - self.beta2**step) ** -0.5,
        }

    def reference(self, w: Array, g: Array, moments: Sequence[Array], step: int) -> tuple[Array, list[Array]]:
        g = g + self.weight_decay * w
        m = self.beta1 * moments[0] + (1 - self.beta1) * g
        v = self.beta2 * moments[1] + (1 - self.beta2) * g * g
        m_hat, v_hat = m / (1 - self.beta1**step), v / (1 - self.beta2**step)
        return w - self.rate * m_hat / (np.sqrt(v_hat) + self.eps), [m, v]


@dataclass(slots=True)
class Nesterov(Momentum):
    """g += weight_decay * w;  m = momentum * m + g;  w -= lr * (g + momentum * m) (Sutskever et al. 2013)."""

    name, device = "nesterov", "NesterovMomentum"

    def reference(self, w: Array, g: Array, moments: Sequence[Array], step: int) -> tuple[Array, list[Array]]:
        g = g + self.weight_decay * w
        m = self.momentum * moments[0] + g
        return w - self.rate * (g + self.momentum * m), [m]


@dataclass(slots=True)
class AdamW(Adam):
    """Adam whose decay acts on the weights directly: w -= lr * weight_decay * w (Loshchilov & Hutter 2019)."""

    weight_decay: float = 1e-2

    name, device = "adamw", "AdamDecoupled"

    def reference(self, w: Array, g: Array, moments: Sequence[Array], step: int) -> tuple[Array, list[Array]]:
        without, moments = Adam.reference(replace(self, weight_decay=0.0), w, g, moments, step)
        return without - self.rate * self.weight_decay * w, moments


@dataclass(slots=True)
class Adagrad(Optimizer):
    """v += g^2;  w -= lr * g / (sqrt(v) + eps) (Duchi et al. 2011); decay is added to the gradient."""

    lr: float | Schedule = 1e-2
    eps: float = 1e-10

    moments = ("v",)
    name, device = "adagrad", "Adagrad"

    def _extra(self, step: int) -> dict[str, float]:
        return {"eps": self.eps}

    def reference(self, w: Array, g: Array, moments: Sequence[Array], step: int) -> tuple[Array, list[Array]]:
        g = g + self.weight_decay * w
        v = moments[0] + g * g
        return w - self.rate * g / (np.sqrt(v) + self.eps), [v]


@dataclass(slots=True)
class RMSprop(Optimizer):
    """v = rho * v + (1 - rho) * g^2;  w -= lr * g / (sqrt(v) + eps) (Hinton 2012); decay is added to the gradient."""

    lr: float | Schedule = 1e-3
    rho: float = 0.99
    eps: float = 1e-8

    moments = ("v",)
    name, device = "rmsprop", "RmsProp"

    def _extra(self, step: int) -> dict[str, float]:
        return {"beta2": self.rho, "complement2": 1 - self.rho, "eps": self.eps}

    def reference(self, w: Array, g: Array, moments: Sequence[Array], step: int) -> tuple[Array, list[Array]]:
        g = g + self.weight_decay * w
        v = self.rho * moments[0] + (1 - self.rho) * g * g
        return w - self.rate * g / (np.sqrt(v) + self.eps), [v]


OPTIMIZERS: tuple[type[Optimizer], ...] = tuple(globals()[name] for name in __all__[1:])
"""Table of optimizers, the source of the kernel's instructions, `--optimizer`, checkpoints and references."""

for _optimizer in OPTIMIZERS:
    _optimizer.__init__ = hinted(_optimizer.__init__)  # type: ignore[method-assign]
