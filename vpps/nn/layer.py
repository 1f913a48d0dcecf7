"""Layers that have a counterpart in PyTorch: they load its weights and give theirs, as its `state_dict` has them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from vpps.errors import ModelError, ShapeError, TraceError
from vpps.hints import Hinting, hinted
from vpps.model.model import Parameter, refuse_nonfinite
from vpps.record.cell import Cell
from vpps.text import dir_without
from vpps.values import Float32, as_float32, as_mapping, said_of

Assignments = list[tuple[Parameter, Float32]]

REVERSE = "_reverse"
"""How PyTorch's names of the second direction end."""


class Named:
    """Has a name of its own, which its cells bear, too."""

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
        """Of what it takes and of what it makes."""
        W: Parameter | None = self.W  # type: ignore[attr-defined]
        return 0 if W is None else W.shape[1], self.hidden_size


class Layer(ABC, Named, Hinting):
    """Has weights that PyTorch's layer of this kind has, too. None of it imports PyTorch."""

    _directions: ClassVar[tuple[str, ...]] = ("",)  # ends of PyTorch's names

    __dir__ = dir_without("")

    @abstractmethod
    def _given(self) -> dict[str, Float32]:
        """The weights by the names and in the layout of PyTorch, without the suffix of a layer's number."""

    @abstractmethod
    def _taken(self, given: Mapping[str, Float32]) -> Assignments:
        """What parameters become by such weights, whose names and shapes are right."""

    if not TYPE_CHECKING:  # for editors and type checkers such a layer is no function

        def __call__(self, *inputs: Any) -> Any:
            """Layers of PyTorch are called; of these, some are. Raises ModelError."""
            cells = (name for name in dir(type(self)) if isinstance(getattr(type(self), name, None), Cell))
            raise ModelError(
                f"{type(self).__name__} is no function; it has the cells {' and '.join(cells)}, for every vertex"
            )

    def state_dict(self, prefix: str = "") -> dict[str, Float32]:
        """The weights as PyTorch's layer has them: copies, by its names with `prefix` before them.

        Example:
            >>> tensors = {name: torch.from_numpy(w) for name, w in linear.state_dict().items()}  # doctest: +SKIP
            >>> torch_linear.load_state_dict(tensors)  # doctest: +SKIP
        """
        return {prefix + name: weights for name, weights in self._given().items()}

    def load(self, weights: Mapping[str, Any], prefix: str = "") -> None:
        """Take the weights of PyTorch's layer, all or none: `linear.load(torch_linear.state_dict())`.

        Args:
            weights: arrays by name; anything that `Parameter.assign` takes, such as tensors.
            prefix: of the names, where they are of a whole network: "encoder.". Others are left alone.

        Raises:
            ModelError: a weight is missing, is one that this layer does not have, or is not finite.
            ShapeError, DtypeError: one has another shape, or holds no numbers.
        """
        self._assign(self._read(weights, prefix))

    def _read(self, weights: Mapping[str, Any], prefix: str, suffix: str = "") -> Assignments:
        """Check the weights that have these names and no others with that prefix and suffix."""
        what = f"{type(self).__name__}.load"
        there = self._by_name(weights)
        expected = {prefix + _key(name, suffix): (name, value.shape) for name, value in self._given().items()}
        given = {}
        for key, (name, shape) in expected.items():
            if key not in there:
                meant = "zeros are what no bias is" if name.startswith("bias") else said_of(key, there)
                raise ModelError(f"{what}: {key!r} is not among the weights; {meant}")
            given[name] = as_float32(there[key], f"{what}: {key!r}")
            if given[name].shape != shape:
                raise ShapeError(f"{what}: {key!r} has shape {given[name].shape}; expected {shape}")
        ends = tuple(suffix + direction for direction in self._directions)
        more = [key for key in there if key.startswith(prefix) and key.endswith(ends) and key not in expected]
        if more:
            raise ModelError(f"{what}: the weights have {more[0]!r}, too; this layer has {', '.join(expected)}")
        return self._taken(given)

    def _by_name(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        return as_mapping(weights, f"{type(self).__name__}.load: weights", ModelError)

    def _assign(self, assignments: Assignments) -> None:
        """All or nothing."""
        for p, value in assignments:
            refuse_nonfinite(value, f"{type(self).__name__}.load: {p!r}")
        for p, value in assignments:
            p.assign(value)


class Recurrent(Layer):
    """A layer that PyTorch numbers: its names end in "_l0", those of a cell (`nn.LSTMCell`) in nothing.

    PyTorch has two biases where one does, as they are added. They are added on loading; given are their sum as the
    first, `bias_ih`, and zeros as the second, `bias_hh`. So PyTorch goes on from the same values, but with SGD moves
    the sum twice as far in a step.
    """

    def state_dict(self, prefix: str = "", layer: str = "l0") -> dict[str, Float32]:
        """As `Linear.state_dict`; `layer` is one of PyTorch's: "l0", "l1", "l0_reverse" ...; "" as a cell has them."""
        return {prefix + _key(name, _suffix(layer)): weights for name, weights in self._given().items()}

    def load(self, weights: Mapping[str, Any], prefix: str = "", layer: str | None = None) -> None:
        """Take the weights of PyTorch's layer, or cell, as `Linear.load` does: `lstm.load(torch_lstm.state_dict())`.

        Args:
            layer: as in `state_dict`; may be left out where there is one.

        Raises:
            ModelError: also where there are several layers.
        """
        self._assign(self._read(weights, prefix, _suffix(self._only(weights, prefix) if layer is None else layer)))

    def _only(self, weights: Mapping[str, Any], prefix: str) -> str:
        """The one layer that the weights are of."""
        start = f"{prefix}weight_ih"
        found = [key[len(start) :] for key in self._by_name(weights) if key.startswith(start)]
        layers = [
            suffix.removeprefix("_") for suffix in found if not (REVERSE in self._directions and REVERSE in suffix)
        ]
        if len(layers) > 1:
            raise ModelError(
                f"{type(self).__name__}.load: these are the weights of layers {', '.join(layers)}, and this is one: "
                f"choose it, layer={layers[0]!r}"
            )
        return layers[0] if layers else "l0"


def _suffix(layer: str) -> str:
    return f"_{layer}" if layer else ""


def _key(name: str, suffix: str) -> str:
    """PyTorch's name: "weight_ih_l0_reverse"."""
    name, direction, _ = name.partition(REVERSE)
    return name + suffix + direction


def reordered(stacked: Float32, order: Sequence[int]) -> Float32:
    """Matrices or biases of gates that are stacked, in another order."""
    gates = np.split(stacked, len(order))
    return np.concatenate([gates[k] for k in order])


def check_children(what: str, states: Sequence[Any], arity: int, size: int, parts: Sequence[str]) -> None:
    """Raise unless these are the states of `arity` children in turn, such as h_1, c_1, h_2, c_2.

    Args:
        what: the call up to them, such as "tree_lstm.node(x, ".
        size: of each part of a state, a vector.
        parts: names of them.
    """
    expected = ", ".join(f"{part}_{k + 1}" for k in range(arity) for part in parts)
    expected = f"{what}{expected}), each of shape ({size},); for a missing child pass graph.zeros({size})"
    if len(states) != arity * len(parts):
        raise TraceError(f"expected {expected}; got {len(states)} values of children, for arity={arity}")
    wrong = next((x for x in states if getattr(x, "shape", None) != (size,)), None)
    if wrong is not None:
        raise ShapeError(f"expected {expected}; got {wrong!r}")
