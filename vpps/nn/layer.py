"""Base classes of layers. Layers with a counterpart in PyTorch exchange weights with it in `state_dict` form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from vpps.errors import ModelError, ShapeError, TraceError
from vpps.hints import Hinting, hinted
from vpps.model.model import Parameter, refuse_nonfinite
from vpps.text import dir_without
from vpps.values import Float32, as_float32, as_mapping, said_of

Assignments = list[tuple[Parameter, Float32]]

REVERSE = "_reverse"
"""Suffix of PyTorch's weight names for the second direction."""


class Named:
    """A layer whose name also appears in the names of its cells."""

    name: str
    hidden_size: int

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            cls.__init__ = hinted(cls.__init__)  # type: ignore[method-assign]

    def __repr__(self) -> str:
        taken, made = self._sizes()
        return f"<vpps.nn.{type(self).__name__} {self.name!r}: {taken} -> {made}>"

    def _sizes(self) -> tuple[int, int]:
        """Return the input size and the output size."""
        W: Parameter | None = self.W  # type: ignore[attr-defined]
        return 0 if W is None else W.shape[1], self.hidden_size


class Layer(Named, Hinting):
    """A layer with the same weights as its counterpart in PyTorch. It does not import PyTorch."""

    _directions: ClassVar[tuple[str, ...]] = ("",)  # suffixes of PyTorch's names
    _in_torch: ClassVar[tuple[tuple[str, str], ...]]  # names in PyTorch, and attributes, of parameters that both have

    __dir__ = dir_without("")

    def _to_torch(self) -> dict[str, Float32]:
        """Return the weights in PyTorch's layout, keyed by PyTorch's names without the layer-number suffix."""
        shared = {name: getattr(self, attribute) for name, attribute in self._in_torch}
        return {name: p.numpy() for name, p in shared.items() if p is not None}

    def _from_torch(self, given: Mapping[str, Float32]) -> Assignments:
        """Convert weights in PyTorch's layout, with valid names and shapes, to the parameters' new values."""
        return [(getattr(self, attribute), given[name]) for name, attribute in self._in_torch if name in given]

    def state_dict(self, prefix: str = "") -> dict[str, Float32]:
        """Return copies of the weights in the layout of PyTorch's layer, keyed by its names with `prefix` in front.

        Example:
            >>> tensors = {name: torch.from_numpy(w) for name, w in linear.state_dict().items()}  # doctest: +SKIP
            >>> torch_linear.load_state_dict(tensors)  # doctest: +SKIP
        """
        return {prefix + name: weights for name, weights in self._to_torch().items()}

    def load(self, weights: Mapping[str, Any], prefix: str = "") -> None:
        """Load the weights of PyTorch's layer, all or none: `linear.load(torch_linear.state_dict())`.

        Args:
            weights: arrays by name, of any type that `Parameter.assign` accepts, such as tensors.
            prefix: prefix of this layer's names among a network's weights, such as "encoder."; others are ignored.

        Raises:
            ModelError: a weight is missing, is unknown to this layer, or is not finite.
            ShapeError, DtypeError: a weight has the wrong shape, or is not numeric.
        """
        self._assign(self._read(weights, prefix))

    def _read(self, weights: Mapping[str, Any], prefix: str, suffix: str = "") -> Assignments:
        """Check that the weights with that prefix and suffix are those of this layer, and return the assignments."""
        what = f"{type(self).__name__}.load"
        there = self._by_name(weights)
        expected = {prefix + _key(name, suffix): (name, value.shape) for name, value in self._to_torch().items()}
        given = {}
        for key, (name, shape) in expected.items():
            if key not in there:
                meant = "for a layer without bias pass zeros" if name.startswith("bias") else said_of(key, there)
                raise ModelError(f"{what}: {key!r} is not among the weights; {meant}")
            given[name] = as_float32(there[key], f"{what}: {key!r}")
            if given[name].shape != shape:
                raise ShapeError(f"{what}: {key!r} has shape {given[name].shape}; expected {shape}")
        ends = tuple(suffix + direction for direction in self._directions)
        more = [key for key in there if key.startswith(prefix) and key.endswith(ends) and key not in expected]
        if more:
            raise ModelError(f"{what}: the weights also have {more[0]!r}; this layer has {', '.join(expected)}")
        return self._from_torch(given)

    def _by_name(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        return as_mapping(weights, f"{type(self).__name__}.load: weights", ModelError)

    def _assign(self, assignments: Assignments) -> None:
        """Assign all values, or none if one is not finite."""
        for p, value in assignments:
            refuse_nonfinite(value, f"{type(self).__name__}.load: {p!r}")
        for p, value in assignments:
            p.assign(value)


class Recurrent(Layer):
    """A layer that PyTorch numbers: its weight names end in "_l0"; those of a cell (`nn.LSTMCell`) have no suffix.

    PyTorch has two biases; this layer stores their sum. `load` adds them. `state_dict` returns the sum as the first,
    `bias_ih`, and zeros as the second, `bias_hh`. PyTorch continues from the same values, but its SGD then changes the
    sum twice as much per step.
    """

    _stack: tuple[Recurrent, ...] = ()  # the layers, if there are several

    def state_dict(self, prefix: str = "", layer: str | None = None) -> dict[str, Float32]:
        """Like `Linear.state_dict`, for all layers. `layer` is PyTorch's suffix for a single one: "l0" (default), "l1",
        "l0_reverse" ..., or "" for a cell."""
        parts = self._numbered("state_dict", layer)
        return {prefix + _key(name, end): weights for part, end in parts for name, weights in part._to_torch().items()}

    def load(self, weights: Mapping[str, Any], prefix: str = "", layer: str | None = None) -> None:
        """Load the weights of PyTorch's layer or cell, like `Linear.load`: `lstm.load(torch_lstm.state_dict())`.

        Args:
            layer: suffix as in `state_dict`; optional if the weights belong to as many layers as this object has.

        Raises:
            ModelError: also if they belong to more layers and `layer` is None.
        """
        parts = self._numbered("load", self._only(weights, prefix) if layer is None else layer)
        self._assign([pair for part, end in parts for pair in part._read(weights, prefix, end)])

    def _numbered(self, method: str, layer: str | None) -> list[tuple[Recurrent, str]]:
        """Return the layers, each with the suffix of its weights' names."""
        if self._stack and layer is not None:
            raise ModelError(f"{type(self).__name__}.{method}: leave layer= out, for all {len(self._stack)} layers")
        own = _suffix("l0" if layer is None else layer)
        return [(part, f"_l{k}") for k, part in enumerate(self._stack)] or [(self, own)]

    def _only(self, weights: Mapping[str, Any], prefix: str) -> str | None:
        """Return the only layer in the weights. Raises ModelError if there are more than this object has."""
        start = f"{prefix}weight_ih"
        found = [key[len(start) :] for key in self._by_name(weights) if key.startswith(start)]
        layers = [
            suffix.removeprefix("_") for suffix in found if not (REVERSE in self._directions and REVERSE in suffix)
        ]
        if len(layers) > max(1, len(self._stack)):
            choose = f"is one layer: choose one, as in layer={layers[0]!r}"
            raise ModelError(
                f"{type(self).__name__}.load: these are the weights of layers {', '.join(layers)}, but this "
                f"{f'object has num_layers={len(self._stack)}' if self._stack else choose}"
            )
        return layers[0] if layers and not self._stack else None


def _suffix(layer: str) -> str:
    return f"_{layer}" if layer else ""


def _key(name: str, suffix: str) -> str:
    """Return PyTorch's name, such as "weight_ih_l0_reverse"."""
    name, direction, _ = name.partition(REVERSE)
    return name + suffix + direction


def reordered(stacked: Float32, order: Sequence[int]) -> Float32:
    """Return stacked gate matrices or biases with the gates reordered."""
    gates = np.split(stacked, len(order))
    return np.concatenate([gates[k] for k in order])


def check_children(what: str, states: Sequence[Any], arity: int, size: int, parts: Sequence[str]) -> None:
    """Raise unless the values are the states of `arity` children in order, such as h_1, c_1, h_2, c_2.

    Args:
        what: the call's text up to the states, such as "tree_lstm.node(x, ".
        size: length of each vector of a state.
        parts: names of a state's vectors.
    """
    expected = ", ".join(f"{part}_{k + 1}" for k in range(arity) for part in parts)
    expected = f"{what}{expected}), each of shape ({size},); for a missing child pass graph.zeros({size})"
    if len(states) != arity * len(parts):
        raise TraceError(f"expected {expected}; got {len(states)} values for arity={arity}")
    wrong = next((x for x in states if getattr(x, "shape", None) != (size,)), None)
    if wrong is not None:
        raise ShapeError(f"expected {expected}; got {wrong!r}")
