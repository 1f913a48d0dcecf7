"""Recurrent layers: LSTM, bidirectional LSTM and GRU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.data import GraphBatch
from vpps.errors import DataError, DtypeError, GraphError, ModelError, ShapeError
from vpps.nn.gates import gate_biases, glorot_per_gate
from vpps.nn.layer import REVERSE, Assignments, Recurrent, reordered
from vpps.record.cell import Cell
from vpps.values import Float32, as_count, as_number

State = tuple[vpps.Expression, vpps.Expression]
"""Hidden state and memory (h, c), each of shape (hidden_size,)."""

IN_TORCH = (0, 1, 3, 2)
"""Permutation from the gate order i, f, o, u to PyTorch's order, and back."""


def predecessors(chains: GraphBatch) -> NDArray[np.int32]:
    """Return the vertex before every vertex, -1 for none. Raises DataError if a vertex may have several children."""
    children = chains.children if isinstance(chains, GraphBatch) else None
    if not isinstance(children, np.ndarray) or children.shape[1] != 1:
        raise DataError(f"{chains!r}: a layer reads chains: every vertex has at most one child, the vertex before it")
    return children[:, 0]


def chain_ends(chains: GraphBatch) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Return `predecessors`, and the first and the last vertex of every chain. Raises DataError for other graphs."""
    before = predecessors(chains)
    first, last = np.flatnonzero(before < 0), chains.roots
    if not len(chains) == len(first) == len(last):  # as there are no cycles, nothing but chains has equal numbers
        raise DataError(f"{chains!r}: expected one chain per graph; {len(first)} vertices are first, {len(last)} last")
    return before, first, last


def check_rows(what: str, rows: Any, n: int, size: int, per: str) -> None:
    """Raise ShapeError unless the argument consists of n rows of shape (size,)."""
    if not isinstance(rows, vpps.Rows) or len(rows) != n or rows.shape != (size,):
        expected = f"expected {n} rows of shape ({size},), one per {per}, as graph.rows(array) makes them"
        raise ShapeError(f"{what}: {expected}; got {rows!r:.80}")


S = TypeVar("S")  # the states of chains: rows, or a tuple of them


class Stacked(Recurrent, Generic[S]):
    """A recurrent layer, or several, each of which reads the states of the one below."""

    _parts: ClassVar[tuple[str, ...]]  # arguments of `_resume` for the parts of a state
    _start: ClassVar[str]  # name of the cell for a first vertex, if the state is zero

    @property
    def layers(self) -> tuple[Self, ...]:
        """The layers, the lowest first; each has its own parameters and cells."""
        return cast(tuple[Self, ...], self._stack) or (self,)

    def _make(self, kind: Any, model: vpps.Model, name: str, X: int, H: int, n: int, rate: float, **rest: Any) -> bool:
        """Set the attributes. If there are several layers, make them, of class `kind`, and return True."""
        number = as_number(rate)
        if number is None or not 0 <= number < 1:
            raise DtypeError(f"{name}: dropout={rate!r}: expected a rate in [0, 1)")
        self.name, self.hidden_size, self.dropout = name, H, number
        if as_count(n, f"{name}: num_layers", ModelError) > 1:
            self._stack = tuple(kind(model, H if k else X, H, name=f"{name}/l{k}", **rest) for k in range(n))
        return n > 1

    def _sizes(self) -> tuple[int, int]:
        return self.layers[0].W.shape[1], self.hidden_size  # type: ignore[attr-defined]

    def _hint_of(self, name: str) -> str | None:
        inside = self._stack and name in vars(self._stack[0])
        return f"each of {len(self._stack)} layers has its own: {self.name}.layers[0].{name}" if inside else None

    def __call__(
        self, graph: vpps.Graph, chains: GraphBatch, x: vpps.Rows, state: S | None = None
    ) -> tuple[vpps.Rows, S]:
        """Read chains through all layers: `outputs, (h, c) = lstm(graph, chains, x, (h0, c0))`. A GRU's state is h.

        Args:
            chains: graphs in which a vertex has at most one child, the previous vertex; see `vpps.data.read_tagged`.
            x: input of every vertex, of shape (input_size,).
            state: the state before every chain, a row of shape (hidden_size,) per chain; zeros by default. With several
                layers, the rows of layer 0 come first, then those of layer 1, as in `nn.LSTM`.

        Returns:
            h of the last layer at every vertex, and the state after every chain, in the form of `state`.

        Raises:
            DataError: a graph is not a single chain.
            ShapeError: inputs or states have wrong shapes, or their number is wrong.
        """
        what = f"{self.name}(graph, chains, x, state)"
        if not isinstance(graph, vpps.Graph):
            raise GraphError(f"{what}: expected a vpps.Graph, got {graph!r}; to read one vector, call a cell: step")
        (before, _, last), n = chain_ends(chains), len(chains)
        given = () if state is None else state if isinstance(state, tuple | list) else (state,)
        if given and len(given) != len(self._parts):
            raise ShapeError(f"{what}: expected the state ({', '.join(self._parts)}), got {len(given)} parts")
        for part, rows in zip(self._parts, given, strict=False):
            check_rows(f"{what}: {part}", rows, n * len(self.layers), self.hidden_size, "chain and layer")
        structure = {**chains.structure, "kind": (before >= 0).view(np.int8)}
        ends = []
        for k, layer in enumerate(self.layers):
            own = {part: rows[chains.graph_of_vertex + k * n] for part, rows in zip(self._parts, given, strict=False)}
            inputs = {"x": vpps.dropout(x, self.dropout) if k else x, **own}
            cells = [getattr(layer, "_resume" if given else self._start), layer.step]  # type: ignore[attr-defined]
            found: Any = graph.map(cells, **structure, inputs=inputs)
            results = found if isinstance(found, tuple) else (found,)
            ends.append([rows[last] for rows in results])
            x = results[0]
        ids = (np.concatenate([rows.ids for rows in of_layers]) for of_layers in zip(*ends, strict=True))
        final = tuple(vpps.Rows(graph, own, (self.hidden_size,)).of(np.tile(chains.numbers, len(ends))) for own in ids)
        return x, cast(S, final if len(final) > 1 else final[0])


class LSTM(Stacked[tuple[vpps.Rows, vpps.Rows]]):
    """LSTM (Hochreiter & Schmidhuber 1997) with forget gates (Gers et al. 2000), like a layer of `nn.LSTM`. PyTorch
    stacks the gates as i, f, u, o.

        [i f o u] = W x + U h' + b
        c = σ(i) ⊙ tanh(u) + σ(f) ⊙ c'
        h = σ(o) ⊙ tanh(c)

    Args:
        num_layers: if there are several layers, each of `layers` has its own parameters (scopes l0, l1 ...) and cells.
        dropout: rate of dropout between layers.
        forget_bias: initial bias of the forget gate; 1 lets memory persist at first (Jozefowicz et al. 2015).
    """

    _parts, _start = ("h0", "c0"), "begin"

    def __init__(
        self,
        model: vpps.Model,
        input_size: int,
        hidden_size: int,
        *,
        num_layers: int = 1,
        dropout: float = 0.0,
        forget_bias: float = 1.0,
        name: str = "lstm",
    ) -> None:
        H = hidden_size
        if self._make(LSTM, model, name, input_size, H, num_layers, dropout, forget_bias=forget_bias):
            return
        with model.scope(name):
            self.W = model.parameter("W", (4 * H, input_size), init=glorot_per_gate(4))
            self.U = model.parameter("U", (4 * H, H), init=glorot_per_gate(4))
            self.b = model.parameter("b", (4 * H,), init=gate_biases(H, 0, forget_bias, 0, 0))

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

    @vpps.cell
    def _resume(self, x: vpps.Expression, h0: vpps.Expression, c0: vpps.Expression) -> State:
        return self.step(x, h0, c0)

    def sequence(self, graph: vpps.Graph, xs: Iterable[vpps.Expression]) -> list[vpps.Expression]:
        """Return the state h of the last layer after each input, starting from zeros."""
        if self._stack:
            for k, layer in enumerate(self.layers):
                xs = layer.sequence(graph, [vpps.dropout(x, self.dropout) for x in xs] if k else xs)
            return list(xs)
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
    h: vpps.Rows
    structure = {**chains.structure, "kind": (predecessors(chains) >= 0).view(np.int8)}
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


class GRU(Stacked[vpps.Rows]):
    """GRU as in Cho et al. 2014 (arXiv:1406.1078): the reset gate acts on the state before the product.

        [r z] = σ(W_rz x + U h' + b_rz)
        n     = tanh(W_n x + V (r ⊙ h') + b_n)
        h     = z ⊙ h' + (1 - z) ⊙ n

    W and b stack the three gates, so that an input needs one product.

    Args:
        reset_after: True applies the reset gate after the product, n = tanh(W_n x + r ⊙ (V h' + a) + b_n). U then
            includes V, so that a step has one product instead of two in sequence. `nn.GRU` has this form, so `load`
            and `state_dict` require it; `a` is PyTorch's second bias.
        num_layers, dropout: as in `LSTM`.
    """

    _parts, _start = ("h0",), "first"

    def __init__(
        self,
        model: vpps.Model,
        input_size: int,
        hidden_size: int,
        *,
        reset_after: bool = False,
        num_layers: int = 1,
        dropout: float = 0.0,
        name: str = "gru",
    ) -> None:
        H = hidden_size
        if self._make(GRU, model, name, input_size, H, num_layers, dropout, reset_after=reset_after):
            return
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

    @vpps.cell
    def _resume(self, x: vpps.Expression, h0: vpps.Expression) -> vpps.Expression:
        return self.step(x, h0)
