"""Recurrent layers: LSTM, bidirectional LSTM and GRU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.data import GraphBatch
from vpps.errors import DataError, ModelError
from vpps.nn.gates import gate_biases, glorot_per_gate
from vpps.nn.layer import REVERSE, Assignments, Recurrent, reordered
from vpps.record.cell import Cell
from vpps.values import Float32

State = tuple[vpps.Expression, vpps.Expression]
"""Hidden state and memory (h, c), each of shape (hidden_size,)."""

IN_TORCH = (0, 1, 3, 2)
"""Permutation from the gate order i, f, o, u to PyTorch's order, and back."""


class LSTM(Recurrent):
    """LSTM (Hochreiter & Schmidhuber 1997) with forget gates (Gers et al. 2000), like a layer of `nn.LSTM`. PyTorch
    stacks the gates as i, f, u, o.

        [i f o u] = W x + U h' + b
        c = σ(i) ⊙ tanh(u) + σ(f) ⊙ c'
        h = σ(o) ⊙ tanh(c)

    Args:
        forget_bias: initial bias of the forget gate; 1 lets memory persist at first (Jozefowicz et al. 2015).
    """

    def __init__(
        self, model: vpps.Model, input_size: int, hidden_size: int, *, forget_bias: float = 1.0, name: str = "lstm"
    ) -> None:
        self.name = name
        self.hidden_size = hidden_size
        with model.scope(name):
            self.W = model.parameter("W", (4 * hidden_size, input_size), init=glorot_per_gate(4))
            self.U = model.parameter("U", (4 * hidden_size, hidden_size), init=glorot_per_gate(4))
            self.b = model.parameter("b", (4 * hidden_size,), init=gate_biases(hidden_size, 0, forget_bias, 0, 0))

    def _to_torch(self) -> dict[str, Float32]:
        W, U, b = (reordered(p.numpy(), IN_TORCH) for p in (self.W, self.U, self.b))
        return {"weight_ih": W, "weight_hh": U, "bias_ih": b, "bias_hh": np.zeros_like(b)}

    def _from_torch(self, given: Mapping[str, Float32]) -> Assignments:
        W, U, b = given["weight_ih"], given["weight_hh"], given["bias_ih"] + given["bias_hh"]
        return [(p, reordered(value, IN_TORCH)) for p, value in ((self.W, W), (self.U, U), (self.b, b))]

    @vpps.cell
    def begin(self, x: vpps.Expression) -> State:
        """Return (h, c) after the first input. The result is that of `step` from zeros, without products with zeros."""
        i, _, o, u = vpps.split(self.W @ x + self.b, 4)
        c = vpps.sigmoid(i) * vpps.tanh(u)
        return vpps.sigmoid(o) * vpps.tanh(c), c

    @vpps.cell
    def step(self, x: vpps.Expression, h: vpps.Expression, c: vpps.Expression) -> State:
        """Return the next (h, c), each of shape (hidden_size,), for an input of shape (input_size,)."""
        i, f, o, u = vpps.split(self.W @ x + self.U @ h + self.b, 4)
        c = vpps.sigmoid(i) * vpps.tanh(u) + vpps.sigmoid(f) * c
        return vpps.sigmoid(o) * vpps.tanh(c), c

    def sequence(self, graph: vpps.Graph, xs: Iterable[vpps.Expression]) -> list[vpps.Expression]:
        """Return the state h after each input, starting from zeros."""
        h = c = graph.zeros(self.hidden_size)
        states = []
        for x in xs:
            h, c = self.step(x, h, c)
            states.append(h)
        return states


def map_chains(graph: vpps.Graph, chains: GraphBatch, begin: Cell[Any], step: Cell[Any], **inputs: Any) -> vpps.Rows:
    """Return the state h of every vertex in some chains. `begin` computes first vertices, `step` all others.

    Raises:
        DataError: the graphs are not chains.
    """
    children = chains.children
    if not isinstance(children, np.ndarray) or children.shape[1] != 1:
        raise DataError("an LSTM reads chains: every vertex has at most one child, the vertex before it")
    kind = (children[:, 0] >= 0).view(np.int8)
    h: vpps.Rows
    structure = {**chains.structure, "kind": kind}
    h, _ = graph.map([begin, step], **structure, inputs=inputs, distinct=True)
    return h


class BiLSTM(Recurrent):
    """Bidirectional LSTM: one LSTM runs forward along every chain, one backward (Graves & Schmidhuber 2005).

    Neither direction reads the other, so both compute level k at once, and the longest chain gives the number of steps.
    `load` accepts a layer of `nn.LSTM(bidirectional=True)`: "l0" means both directions.

    Args:
        table: embedding table whose rows are the inputs. If None, the inputs are vectors.
    """

    _directions = ("", REVERSE)

    def __init__(
        self,
        model: vpps.Model,
        input_size: int,
        hidden_size: int,
        *,
        table: vpps.Lookup | None = None,
        name: str = "bilstm",
    ) -> None:
        self.name = name
        self.table = table
        with model.scope(name):
            self.forward = LSTM(model, input_size, hidden_size, name="forward")
            self.backward = LSTM(model, input_size, hidden_size, name="backward")

    def _sizes(self) -> tuple[int, int]:
        return self.forward._sizes()

    def _to_torch(self) -> dict[str, Float32]:
        back = {name + REVERSE: weights for name, weights in self.backward._to_torch().items()}
        return self.forward._to_torch() | back

    def _from_torch(self, given: Mapping[str, Float32]) -> Assignments:
        back = {name.removesuffix(REVERSE): weights for name, weights in given.items() if name.endswith(REVERSE)}
        return self.forward._from_torch(given) + self.backward._from_torch(back)

    def _vector(self, x: Any) -> vpps.Expression:
        return x if self.table is None else vpps.lookup(self.table, x)

    @vpps.cell
    def begin_forward(self, x: Any) -> State:
        """Return (h, c) of the first vertex."""
        return self.forward.begin(self._vector(x))

    @vpps.cell
    def step_forward(self, x: Any, h: vpps.Expression, c: vpps.Expression) -> State:
        """Return (h, c) of any later vertex, from (h, c) of the previous vertex."""
        return self.forward.step(self._vector(x), h, c)

    @vpps.cell
    def begin_backward(self, x: Any) -> State:
        """Return (h, c) of the last vertex."""
        return self.backward.begin(self._vector(x))

    @vpps.cell
    def step_backward(self, x: Any, h: vpps.Expression, c: vpps.Expression) -> State:
        """Return (h, c) of any earlier vertex, from (h, c) of the next vertex."""
        return self.backward.step(self._vector(x), h, c)

    def __call__(
        self, graph: vpps.Graph, chains: GraphBatch, x: NDArray[np.int32] | vpps.Rows
    ) -> tuple[vpps.Rows, vpps.Rows]:
        """Return the state h of every vertex, (hidden_size,), in the forward and in the backward direction.

        Args:
            chains: graphs in which a vertex has at most one child, the previous vertex; see `vpps.data.read_tagged`.
            x: input of every vertex: table rows of shape (vertices,), or vectors if there is no table.
        """
        forward = map_chains(graph, chains, self.begin_forward, self.step_forward, x=x)
        return forward, map_chains(graph, chains.reversed, self.begin_backward, self.step_backward, x=x)


class GRU(Recurrent):
    """GRU as in Cho et al. 2014 (arXiv:1406.1078): the reset gate acts on the state before the product.

        [r z] = σ(W_rz x + U h' + b_rz)
        n     = tanh(W_n x + V (r ⊙ h') + b_n)
        h     = z ⊙ h' + (1 - z) ⊙ n

    W and b stack the three gates, so that an input needs one product.

    Args:
        reset_after: True applies the reset gate after the product, n = tanh(W_n x + r ⊙ (V h' + a) + b_n). U then
            includes V, so that a step has one product instead of two in sequence. `nn.GRU` has this form, so `load`
            and `state_dict` require it; `a` is PyTorch's second bias.
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

    def _to_torch(self) -> dict[str, Float32]:
        if self.a is None:
            raise ModelError(
                "PyTorch's GRU applies its reset gate after the product, and this one before it, so no weights make "
                "them equal; declare vpps.nn.GRU(..., reset_after=True)"
            )
        second = np.concatenate([np.zeros(2 * self.hidden_size, np.float32), self.a.numpy()])
        W, U, b = self.W.numpy(), self.U.numpy(), self.b.numpy()
        return {"weight_ih": W, "weight_hh": U, "bias_ih": b, "bias_hh": second}

    def _from_torch(self, given: Mapping[str, Float32]) -> Assignments:
        assert self.a is not None
        of_gates, a = np.split(given["bias_hh"], [2 * self.hidden_size])
        b = given["bias_ih"] + np.concatenate([of_gates, np.zeros_like(a)])
        return [(self.W, given["weight_ih"]), (self.U, given["weight_hh"]), (self.b, b), (self.a, a)]

    @vpps.cell
    def step(self, x: vpps.Expression, h: vpps.Expression) -> vpps.Expression:
        """Return the next state, of shape (hidden_size,), for an input of shape (input_size,)."""
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
        """Return the result of `step` from a state of zeros."""
        r, z, n = vpps.split(self.W @ x + self.b, 3)
        n = n if self.a is None else n + vpps.sigmoid(r) * self.a
        return (1 - vpps.sigmoid(z)) * vpps.tanh(n)
