"""Layers for trees: LSTMs (Tai, Socher & Manning 2015, arXiv:1503.00075) and a gated recurrent unit."""

from __future__ import annotations

from collections.abc import Sequence

import vpps
from vpps.errors import TraceError
from vpps.nn.gates import child_matrices, gate_biases, glorot_per_gate, multiply_children
from vpps.nn.layer import Named, check_children
from vpps.nn.recurrent import State
from vpps.record.cell import LISTS


class NaryTreeLSTM(Named):
    """N-ary Tree-LSTM (section 3.2), for trees whose nodes have up to N ordered children. A node with children 1..N:

        i   = σ(W_i x + Σ_l U_il h_l + b_i)
        o   = σ(W_o x + Σ_l U_ol h_l + b_o)
        f_k = σ(W_f x + Σ_l U_fkl h_l + b_f)                   one forget gate per child
        u   = tanh(W_u x + Σ_l U_ul h_l + b_u)
        c   = i ⊙ u + Σ_k f_k ⊙ c_k
        h   = o ⊙ tanh(c)

    `node` computes the full equations. In the paper's constituency trees inner nodes have no x, and the sums over
    children vanish at the leaves, which hold the words. `leaf` then needs one (3H, input_size) matrix and `inner` one
    ((3 + N)H, N H) matrix. As in the authors' program, leaves have their own bias.

    Args:
        input_size: length of x in `leaf`. If another cell computes the leaves, 0 declares no weights for `leaf`.
        arity: N. For a missing child, pass zeros: `graph.zeros(hidden_size)`.
        inner_input_size: length of x in `node`, such as an embedding of node types. 0 declares no weights for it.
        forget_bias: initial bias of the forget gates.
        per_child: True declares a parameter for each of U_1 ... U_N. That is faster on a CPU with
            `graph.map(distinct=True)`, and with large batches; it is slower on a GPU with few trees.
    """

    def __init__(
        self,
        model: vpps.Model,
        input_size: int,
        hidden_size: int,
        arity: int = 2,
        *,
        inner_input_size: int = 0,
        forget_bias: float = 0.0,
        per_child: bool = False,
        name: str = "tree_lstm",
    ) -> None:
        self.name = name
        self.hidden_size = H = hidden_size
        self.arity = arity
        self.W: vpps.Parameter | None = None
        self.V: vpps.Parameter | None = None
        with model.scope(name):
            if input_size:
                self.W = model.parameter("W", (3 * H, input_size), init=glorot_per_gate(3))
                self.b_leaf = model.parameter("b_leaf", (3 * H,), init="zeros")
            init = glorot_per_gate(3 + arity)
            self.U = child_matrices(model, (3 + arity) * H, H, arity, init=init, per_child=per_child)
            self.b = model.parameter("b", ((3 + arity) * H,), init=gate_biases(H, 0, 0, 0, *[forget_bias] * arity))
            if inner_input_size:
                self.V = model.parameter("V", (4 * H, inner_input_size), init=glorot_per_gate(4))

    @vpps.cell
    def leaf(self, x: vpps.Expression) -> State:
        """Return (h, c) of a node without children, for an input of shape (input_size,)."""
        if self.W is None:
            raise TraceError(f"{self.name}.leaf: declared with input_size=0, so there are no weights for x")
        i, o, u = vpps.split(self.W @ x + self.b_leaf, 3)
        return _memorise(i, o, u)

    @vpps.cell
    def inner(self, *states: vpps.Expression) -> State:
        """Return (h, c) of a node without input, from its children's h_1, c_1, h_2, c_2: `inner(*left, *right)`."""
        i, o, u, *f = self._gates("inner(", states)
        return _memorise(i, o, u, f, states[1::2])

    @vpps.cell
    def node(self, x: vpps.Expression, *states: vpps.Expression) -> State:
        """Return (h, c) of a node with input x of shape (inner_input_size,). The other arguments are as in `inner`."""
        if self.V is None:
            raise TraceError(
                f"{self.name}.node: there are no weights for x; declare it with inner_input_size=..., or use inner, "
                "which takes only the states"
            )
        i, o, u, *f = self._gates("node(x, ", states)
        xi, xo, xu, xf = vpps.split(self.V @ x, 4)
        return _memorise(i + xi, o + xo, u + xu, [fk + xf for fk in f], states[1::2])

    def _gates(self, what: str, states: Sequence[vpps.Expression]) -> Sequence[vpps.Expression]:
        check_children(f"{self.name}.{what}", states, self.arity, self.hidden_size, ("h", "c"))
        return vpps.split(multiply_children(self.U, states[0::2]) + self.b, 3 + self.arity)


class ChildSumTreeLSTM(Named):
    """Child-sum Tree-LSTM (section 3.1), for trees whose nodes have any number of unordered children:

        h~  = Σ_k h_k
        i   = σ(W_i x + U_i h~ + b_i)
        o   = σ(W_o x + U_o h~ + b_o)
        f_k = σ(W_f x + U_f h_k + b_f)                         one forget gate per child
        u   = tanh(W_u x + U_u h~ + b_u)
        c   = i ⊙ u + Σ_k f_k ⊙ c_k
        h   = o ⊙ tanh(c)

    `node` computes these equations. In constituency trees x is zero at inner nodes, the sums over children vanish at
    leaves, and no forget gate sees an input. `leaf` and `inner` compute the remaining terms.

    Args:
        inner_inputs: False for constituency trees: W_f is not declared, and `node` raises TraceError.
        forget_bias: initial bias of the forget gates.
    """

    def __init__(
        self,
        model: vpps.Model,
        input_size: int,
        hidden_size: int,
        *,
        inner_inputs: bool = True,
        forget_bias: float = 0.0,
        name: str = "child_sum",
    ) -> None:
        self.name = name
        self.hidden_size = H = hidden_size
        self.gates = gates = 4 if inner_inputs else 3
        with model.scope(name):
            self.W = model.parameter("W", (gates * H, input_size), init=glorot_per_gate(gates))
            self.b = model.parameter("b", (4 * H,), init=gate_biases(H, 0, 0, 0, forget_bias))
            self.U = model.parameter("U", (3 * H, H), init=glorot_per_gate(3))
            self.Uf = model.parameter("Uf", (H, H), init="glorot_uniform")

    @vpps.cell
    def node(self, x: vpps.Expression, hs: list[vpps.Expression], cs: list[vpps.Expression]) -> State:
        """Return (h, c) of a node from its input, (input_size,), and its children's states. The lists may be empty."""
        if self.gates == 3:
            raise TraceError(
                f"{self.name}.node: declared with inner_inputs=False, so the forget gates have no weights for x; "
                "use leaf(x) and inner(hs, cs), which need none"
            )
        self._check_lists("node(x, ", hs, cs)
        wi, wo, wu, wf = vpps.split(self.W @ x + self.b, 4)
        ui, uo, uu = vpps.split(self.U @ vpps.sum(hs), 3)
        kept = vpps.each(lambda h, c: vpps.sigmoid(wf + self.Uf @ h) * c, hs, cs)
        c = vpps.sigmoid(wi + ui) * vpps.tanh(wu + uu) + vpps.sum(kept)
        return vpps.sigmoid(wo + uo) * vpps.tanh(c), c

    @vpps.cell
    def leaf(self, x: vpps.Expression) -> State:
        """Return (h, c) of a node without children, for an input of shape (input_size,)."""
        i, o, u, *_ = vpps.split(self.W @ x + self.b[: self.gates * self.hidden_size], self.gates)
        return _memorise(i, o, u)

    @vpps.cell
    def inner(self, hs: list[vpps.Expression], cs: list[vpps.Expression]) -> State:
        """Return (h, c) of a node without input, from its children's states."""
        self._check_lists("inner(", hs, cs)
        H = self.hidden_size
        i, o, u = vpps.split(self.U @ vpps.sum(hs) + self.b[: 3 * H], 3)
        kept = vpps.each(lambda h, c: vpps.sigmoid(self.Uf @ h + self.b[3 * H :]) * c, hs, cs)
        c = vpps.sigmoid(i) * vpps.tanh(u) + vpps.sum(kept)
        return vpps.sigmoid(o) * vpps.tanh(c), c

    def _check_lists(self, what: str, hs: object, cs: object) -> None:
        if not (isinstance(hs, LISTS) and isinstance(cs, LISTS)):
            raise TraceError(
                f"{self.name}.{what}hs, cs): expected the h of all children in a list, and their c in another, "
                f"{what}[h_1, h_2], [c_1, c_2]); in graph.map give children as lists, (offsets, indices)"
            )


def _memorise(
    i: vpps.Expression,
    o: vpps.Expression,
    u: vpps.Expression,
    f: Sequence[vpps.Expression] = (),
    c: Sequence[vpps.Expression] = (),
) -> State:
    """Return (h, c) from the gates before their nonlinearities and the children's memories."""
    memory = vpps.sigmoid(i) * vpps.tanh(u)
    for fk, ck in zip(f, c, strict=True):
        memory += vpps.sigmoid(fk) * ck
    return vpps.sigmoid(o) * vpps.tanh(memory), memory


class NaryTreeGRU(Named):
    """A GRU (Chung et al. 2014) whose previous states are those of up to N ordered children:

        r  = σ(Σ_l U_rl h_l + b_r)                             reset
        z  = σ(Σ_l U_zl h_l + b_z)                             update
        h~ = tanh(Σ_l U_l (r ⊙ h_l) + b)
        h  = (1 - z) ⊙ mean_l h_l + z ⊙ h~

    It follows the TreeGRU of Kokkinos & Potamianos 2017 (arXiv:1701.01811); each gate sees all children. As in
    ED-Batch's program, 1 - z weights the mean of the children's states. A leaf with input x is a step from a state of
    zeros, h = σ(W_z x + b_z) ⊙ tanh(W x + b), with its own biases as in Tree-LSTMs.

    Args:
        arity: N. For a missing child, pass zeros: `graph.zeros(hidden_size)`.
        per_child: True declares a parameter for each U_l of the gates, as in `NaryTreeLSTM`.
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
        """Return h of a node without children, for an input of shape (input_size,)."""
        z, candidate = vpps.split(self.W @ x + self.b_leaf, 2)
        return vpps.sigmoid(z) * vpps.tanh(candidate)

    @vpps.cell
    def inner(self, *hs: vpps.Expression) -> vpps.Expression:
        """Return h of a node without input, from h_1 ... h_N."""
        check_children(f"{self.name}.inner(", hs, self.arity, self.hidden_size, ("h",))
        r, z = vpps.split(vpps.sigmoid(multiply_children(self.U_gates, hs) + self.b_gates), 2)
        candidate = vpps.tanh(self.U @ vpps.concat([r * h for h in hs]) + self.b)
        mean = vpps.sum(hs) * (1 / self.arity)
        return mean + z * (candidate - mean)
