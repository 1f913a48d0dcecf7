"""The gated recurrent unit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import vpps
from vpps.errors import ModelError
from vpps.nn.gates import glorot_per_gate
from vpps.nn.layer import Assignments, Recurrent
from vpps.values import Float32


class GRU(Recurrent):
    """GRU as in Cho et al. 2014 (arXiv:1406.1078): the reset gate acts on the state before it is multiplied.

        [r z] = σ(W_rz x + U h' + b_rz)
        n     = tanh(W_n x + V (r ⊙ h') + b_n)
        h     = z ⊙ h' + (1 - z) ⊙ n

    W and b are the three stacked, so that an input takes one product.

    Args:
        reset_after: the reset gate acts on what was multiplied, n = tanh(W_n x + r ⊙ (V h' + a) + b_n). V is part of U
            then, so that a step has one product, not two in a row. That is the form of `nn.GRU`, and only so there are
            `load` and `state_dict`; a is in the second bias.
    """

    def __init__(
        self,
        model: vpps.Model,
        input_size: int,
        hidden_size: int,
        *,
        reset_after: bool = False,
        name: str = "gru",
    ) -> None:
        self.name = name
        self.hidden_size = H = hidden_size
        with model.scope(name):
            self.W = model.parameter("W", (3 * H, input_size), init=glorot_per_gate(3))
            self.b = model.parameter("b", (3 * H,), init="zeros")
            gates = 3 if reset_after else 2
            self.U = model.parameter("U", (gates * H, H), init=glorot_per_gate(gates))
            self.V = None if reset_after else model.parameter("V", (H, H), init="glorot_uniform")
            self.a = model.parameter("a", (H,), init="zeros") if reset_after else None

    def _given(self) -> dict[str, Float32]:
        if self.a is None:
            raise ModelError(
                "PyTorch's GRU applies its reset gate after the product, this one before it, so that no weights make "
                "them equal; declare vpps.nn.GRU(..., reset_after=True)"
            )
        second = np.concatenate([np.zeros(2 * self.hidden_size, np.float32), self.a.numpy()])
        W, U, b = self.W.numpy(), self.U.numpy(), self.b.numpy()
        return {"weight_ih": W, "weight_hh": U, "bias_ih": b, "bias_hh": second}

    def _taken(self, given: Mapping[str, Float32]) -> Assignments:
        assert self.a is not None
        of_gates, a = np.split(given["bias_hh"], [2 * self.hidden_size])
        b = given["bias_ih"] + np.concatenate([of_gates, np.zeros_like(a)])
        return [(self.W, given["weight_ih"]), (self.U, given["weight_hh"]), (self.b, b), (self.a, a)]

    @vpps.cell
    def step(self, x: vpps.Expression, h: vpps.Expression) -> vpps.Expression:
        """The next state, of shape (hidden_size,), from an input of shape (input_size,)."""
        wr, wz, wn = vpps.split(self.W @ x + self.b, 3)
        ur, uz, *un = vpps.split(self.U @ h, 2 if self.a is None else 3)
        z, r = vpps.sigmoid(wz + uz), vpps.sigmoid(wr + ur)
        if self.V is not None:
            n = vpps.tanh(wn + self.V @ (r * h))
        else:
            assert self.a is not None
            n = vpps.tanh(wn + r * (un[0] + self.a))
        return z * h + (1 - z) * n

    @vpps.cell
    def first(self, x: vpps.Expression) -> vpps.Expression:
        """What `step` gives from a state of zeros."""
        r, z, n = vpps.split(self.W @ x + self.b, 3)
        n = n if self.a is None else n + vpps.sigmoid(r) * self.a
        return (1 - vpps.sigmoid(z)) * vpps.tanh(n)
