"""Affine layers and normalisation, for use inside cells, on expressions and on rows."""

from __future__ import annotations

import vpps
from vpps.errors import ShapeError
from vpps.init import Initialiser
from vpps.nn.layer import Layer, Named


class Linear(Layer):
    """Affine layer y = W x + b, like `nn.Linear`. Call it on an expression or on rows of shape (input_size,).

    Args:
        bias: False omits b.
        init: initialiser of W.
    """

    _in_torch = ("weight", "W"), ("bias", "b")

    def __init__(
        self,
        model: vpps.Model,
        input_size: int,
        output_size: int,
        *,
        bias: bool = True,
        init: str | Initialiser = "glorot_uniform",
        name: str = "linear",
    ) -> None:
        self.name = name
        with model.scope(name):
            self.W = model.parameter("W", (output_size, input_size), init=init)
            self.b = model.parameter("b", (output_size,), init="zeros") if bias else None

    def _sizes(self) -> tuple[int, int]:
        return self.W.shape[1], self.W.shape[0]

    @vpps.cell
    def __call__(self, x: vpps.Expression) -> vpps.Expression:
        """Map (input_size,) to (output_size,), and `Rows` row by row. Product and bias form one instruction."""
        y = self.W @ x
        return y if self.b is None else y + self.b


class LayerNorm(Layer):
    """Layer normalisation (Ba et al. 2016), y = (x - mean) / sqrt(variance + eps) ⊙ gain + b, like `nn.LayerNorm` over
    vectors. The function `vpps.layer_norm` has no parameters."""

    _in_torch = ("weight", "gain"), ("bias", "b")

    def __init__(self, model: vpps.Model, size: int, *, eps: float = 1e-5, name: str = "layer_norm") -> None:
        self.name = name
        self.eps = eps
        with model.scope(name):
            self.gain = model.parameter("gain", (size,), init="ones")
            self.b = model.parameter("b", (size,), init="zeros")

    def _sizes(self) -> tuple[int, int]:
        return self.gain.shape[0], self.gain.shape[0]

    @vpps.cell
    def __call__(self, x: vpps.Expression) -> vpps.Expression:
        """Normalise a vector of shape (size,), and `Rows` row by row."""
        return vpps.layer_norm(x, eps=self.eps) * self.gain + self.b


class MLP(Named):
    """Multi-layer perceptron: y = V tanh(W x + b) + a.

    Args:
        hidden_size: size of the hidden layer; a list or tuple for several layers: `MLP(model, 16, (128, 64), 3)`. The
            scopes of the layers are "hidden", "hidden_2" and so on.

    Raises:
        ShapeError: there is no hidden layer.
    """

    def __init__(
        self,
        model: vpps.Model,
        input_size: int,
        hidden_size: int | list[int] | tuple[int, ...],
        output_size: int,
        *,
        name: str = "mlp",
    ) -> None:
        self.name = name
        sizes = list(hidden_size) if isinstance(hidden_size, list | tuple) else [hidden_size]
        if not sizes:
            raise ShapeError(
                f"MLP(hidden_size={hidden_size!r}): expected an int, or several; without a hidden layer use Linear"
            )
        with model.scope(name):
            self.layers = tuple(
                Linear(model, before, size, name=f"hidden_{k}" if k > 1 else "hidden")
                for k, (before, size) in enumerate(zip([input_size, *sizes], sizes, strict=False), 1)
            )
            self.output = Linear(model, sizes[-1], output_size, name="output")
        self.hidden = self.layers[0]

    def _sizes(self) -> tuple[int, int]:
        return self.hidden._sizes()[0], self.output._sizes()[1]

    @vpps.cell
    def __call__(self, x: vpps.Expression) -> vpps.Expression:
        """Map (input_size,) to (output_size,), and `Rows` row by row, one vertex for each row."""
        for layer in self.layers:
            x = vpps.tanh(layer(x))
        return self.output(x)
