"""The gated recurrent unit."""

from __future__ import annotations

import vpps
from vpps.nn.gates import glorot_per_gate


class GRU:
    """GRU as in Cho et al. 2014 (arXiv:1406.1078): the reset gate acts on the state before it is multiplied.

        [r z] = σ(W_rz x + U h' + b_rz)
        n     = tanh(W_n x + V (r ⊙ h') + b_n)
        h     = z ⊙ h' + (1 - z) ⊙ n

    W and b are the three stacked, so that an input takes one product.
    """

    def __init__(self, model: vpps.Model, input_size: int, hidden_size: int, *, name: str = "gru") -> None:
        self.name = name
        self.hidden_size = H = hidden_size
        with model.scope(name):
            self.W = model.parameter("W", (3 * H, input_size), init=glorot_per_gate(3))
            self.b = model.parameter("b", (3 * H,), init="zeros")
            self.U = model.parameter("U", (2 * H, H), init=glorot_per_gate(2))
            self.V = model.parameter("V", (H, H), init="glorot_uniform")

    @vpps.cell
    def step(self, x: vpps.Expression, h: vpps.Expression) -> vpps.Expression:
        """The next state, of shape (hidden_size,), from an input of shape (input_size,)."""
        wr, wz, wn = vpps.split(self.W @ x + self.b, 3)
        ur, uz = vpps.split(self.U @ h, 2)
        z = vpps.sigmoid(wz + uz)
        n = vpps.tanh(wn + self.V @ (vpps.sigmoid(wr + ur) * h))
        return z * h + (1 - z) * n

    @vpps.cell
    def first(self, x: vpps.Expression) -> vpps.Expression:
        """What `step` gives from a state of zeros."""
        _, z, n = vpps.split(self.W @ x + self.b, 3)
        return (1 - vpps.sigmoid(z)) * vpps.tanh(n)
