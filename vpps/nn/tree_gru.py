"""A gated recurrent unit for trees."""

from __future__ import annotations

import vpps
from vpps.nn.gates import child_matrices, glorot_per_gate, multiply_children
from vpps.nn.layer import Named, check_children


class NaryTreeGRU(Named):
    """A GRU (Chung et al. 2014) whose previous state is that of up to N ordered children:

        r  = σ(Σ_l U_rl h_l + b_r)                             reset
        z  = σ(Σ_l U_zl h_l + b_z)                             update
        h~ = tanh(Σ_l U_l (r ⊙ h_l) + b)
        h  = (1 - z) ⊙ mean_l h_l + z ⊙ h~

    after the TreeGRU of Kokkinos & Potamianos 2017 (arXiv:1701.01811), each gate seeing all children; the mean of their
    states is what is kept, as in ED-Batch's program. A leaf with input x is a step from a state of zeros,
    h = σ(W_z x + b_z) ⊙ tanh(W x + b), with biases of its own as in Tree-LSTMs.

    Args:
        arity: N. For a missing child pass zeros: `graph.zeros(hidden_size)`.
        per_child: a parameter for each U_l of the gates, as in `NaryTreeLSTM`.
    """

    def __init__(
        self,
        model: vpps.Model,
        input_size: int,
        hidden_size: int,
        arity: int = 2,
        *,
        per_child: bool = False,
        name: str = "tree_gru",
    ) -> None:
        self.name = name
        self.hidden_size = H = hidden_size
        self.arity = arity
        with model.scope(name):
            self.W = model.parameter("W", (2 * H, input_size), init=glorot_per_gate(2))
            self.b_leaf = model.parameter("b_leaf", (2 * H,), init="zeros")
            init = glorot_per_gate(2)
            self.U_gates = child_matrices(model, 2 * H, H, arity, init=init, per_child=per_child, name="U_gates")
            self.b_gates = model.parameter("b_gates", (2 * H,), init="zeros")
            self.U = model.parameter("U", (H, arity * H), init="glorot_uniform")
            self.b = model.parameter("b", (H,), init="zeros")

    @vpps.cell
    def leaf(self, x: vpps.Expression) -> vpps.Expression:
        """h of a node without children, from an input of shape (input_size,)."""
        z, candidate = vpps.split(self.W @ x + self.b_leaf, 2)
        return vpps.sigmoid(z) * vpps.tanh(candidate)

    @vpps.cell
    def inner(self, *hs: vpps.Expression) -> vpps.Expression:
        """h of a node without input, from h_1 ... h_N."""
        check_children(f"{self.name}.inner(", hs, self.arity, self.hidden_size, ("h",))
        r, z = vpps.split(vpps.sigmoid(multiply_children(self.U_gates, hs) + self.b_gates), 2)
        candidate = vpps.tanh(self.U @ vpps.concat([r * h for h in hs]) + self.b)
        mean = vpps.sum(hs) * (1 / self.arity)
        return mean + z * (candidate - mean)
