"""Six models, each recorded in bulk and call by call on the same data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.data import GraphBatch, GraphSet

H = 20  # hidden units
X = 12  # of an input
WORDS, CLASSES = 30, 5

Cells = Mapping[str, Callable[..., Any]]
Array = NDArray[Any]


class Recorded(NamedTuple):
    """What a model's data became.

    Attributes:
        loss: a scalar.
        values: of the vertices: rows, or a list of expressions.
        inputs: those whose gradients are wanted, likewise; or None.
    """

    loss: Any
    values: list[Any]
    inputs: Any = None


class Network(NamedTuple):
    """A model in two forms.

    Attributes:
        parameters: shapes by name; the first one of words is a table.
        cells: makes the cells, by name, from the parameters.
        data: random, by seed and number of graphs.
        bulk: records the data in bulk.
        calls: does so call by call, in the same order.
    """

    parameters: Mapping[str, tuple[int, ...]]
    cells: Callable[[Any], Cells]
    data: Callable[[np.random.Generator, int], Any]
    bulk: Callable[[vpps.Graph, Cells, Any, Any], Recorded]
    calls: Callable[[vpps.Graph, Cells, Any, Any], Recorded]

    def make(self) -> tuple[vpps.Model, Cells, Any]:
        """A model with these parameters; its cells; the parameters."""
        model = vpps.Model(seed=3)
        p = SimpleNamespace()
        for name, shape in self.parameters.items():
            if name == "words" or len(shape) == 3:
                made: Any = model.lookup(name, shape, init="normal")
            else:
                made = model.parameter(name, shape, init="normal" if len(shape) == 1 else "glorot_uniform")
            setattr(p, name, made)
        return model, {name: vpps.cell(f) for name, f in self.cells(p).items()}, p


def forest(rng: np.random.Generator, n: int) -> Array:
    """Children (vertices, 2) of n random binary trees, in post-order, -1 at leaves."""
    children: list[tuple[int, int]] = []
    for leaves in rng.integers(1, 8, n).tolist():
        roots: list[int] = []
        for _ in range(leaves):
            roots.append(len(children))
            children.append((-1, -1))
            while len(roots) > 1 and rng.random() < 0.5:
                right, left = roots.pop(), roots.pop()
                roots.append(len(children))
                children.append((left, right))
        while len(roots) > 1:
            right, left = roots.pop(), roots.pop()
            roots.append(len(children))
            children.append((left, right))
    return np.array(children, np.int32)


# ---- leaf and inner cells of two kinds


def _memorise(i: Any, o: Any, u: Any, kept: Any = None) -> tuple[Any, Any]:
    c = vpps.sigmoid(i) * vpps.tanh(u)
    if kept is not None:
        c = c + kept
    return vpps.sigmoid(o) * vpps.tanh(c), c


def _two_kinds_cells(p: Any) -> Cells:
    def leaf(word: Any) -> Any:
        return _memorise(*vpps.split(p.W @ vpps.lookup(p.words, word) + p.b, 3))

    def inner(h_left: Any, c_left: Any, h_right: Any, c_right: Any) -> Any:
        i, o, u, fl, fr = vpps.split(p.U @ vpps.concat([h_left, h_right]) + p.bU, 5)
        return _memorise(i, o, u, vpps.sigmoid(fl) * c_left + vpps.sigmoid(fr) * c_right)

    return {"leaf": leaf, "inner": inner, "node_loss": _node_loss(p)}


def _node_loss(p: Any) -> Callable[[Any, Any], Any]:
    def node_loss(h: Any, label: Any) -> Any:
        return vpps.cross_entropy(p.Wo @ h + p.bo, label)

    return node_loss


def _two_kinds_data(rng: np.random.Generator, n: int) -> Any:
    children = forest(rng, n)
    kind = (children[:, 0] >= 0).astype(np.int8)
    words = np.where(kind == 0, rng.integers(0, WORDS, len(kind)), -1)
    return SimpleNamespace(children=children, kind=kind, words=words, labels=rng.integers(0, CLASSES, len(kind)))


def _two_kinds_bulk(graph: vpps.Graph, cells: Cells, p: Any, d: Any) -> Recorded:
    kinds = [cells["leaf"], cells["inner"]]
    h, c = graph.map(kinds, kind=d.kind, children=d.children, inputs={"word": d.words})
    return Recorded(vpps.sum(cells["node_loss"](h, d.labels)), [h, c])


def _two_kinds_calls(g: vpps.Graph, cells: Cells, p: Any, d: Any) -> Recorded:
    states: list[Any] = []
    for kind, (left, right), word in zip(d.kind, d.children, d.words.tolist(), strict=True):
        states.append(g.call(cells["inner"], *states[left], *states[right]) if kind else g.call(cells["leaf"], word))
    losses = [g.call(cells["node_loss"], h, y) for (h, _), y in zip(states, d.labels.tolist(), strict=True)]
    return Recorded(vpps.sum(losses), [[h for h, _ in states], [c for _, c in states]])


OUT = {"Wo": (CLASSES, H), "bo": (CLASSES,)}
two_kinds = Network(
    {"words": (WORDS, X), "W": (3 * H, X), "b": (3 * H,), "U": (5 * H, 2 * H), "bU": (5 * H,), **OUT},
    _two_kinds_cells, _two_kinds_data, _two_kinds_bulk, _two_kinds_calls,
)  # fmt: skip

# ---- one cell for all nodes of a tree: missing children read zeros


def _tree_lstm_cells(p: Any) -> Cells:
    def node(x: Any, h_left: Any, c_left: Any, h_right: Any, c_right: Any) -> Any:
        i, o, u, fl, fr = vpps.split(p.U @ vpps.concat([x, h_left, h_right]) + p.b, 5)
        return _memorise(i, o, u, vpps.sigmoid(fl) * c_left + vpps.sigmoid(fr) * c_right)

    return {"node": node, "node_loss": _node_loss(p)}


def _tree_lstm_data(rng: np.random.Generator, n: int) -> Any:
    children = forest(rng, n)
    x = rng.normal(size=(len(children), X)).astype(np.float32)
    return SimpleNamespace(children=children, x=x, labels=rng.integers(0, CLASSES, len(children)))


def _tree_lstm_bulk(graph: vpps.Graph, cells: Cells, p: Any, d: Any) -> Recorded:
    x = graph.rows(d.x, grad=True)
    h, c = graph.map(cells["node"], children=d.children, inputs={"x": x})
    return Recorded(vpps.sum(vpps.cross_entropy(p.Wo @ h + p.bo, d.labels)), [h, c], x)


def _tree_lstm_calls(g: vpps.Graph, cells: Cells, p: Any, d: Any) -> Recorded:
    x = [g.input(row, grad=True) for row in d.x]
    states: list[Any] = []
    zeros = (g.zeros(H), g.zeros(H))
    for own, (left, right) in zip(x, d.children, strict=True):
        lower = [*(zeros if left < 0 else states[left]), *(zeros if right < 0 else states[right])]
        states.append(g.call(cells["node"], own, *lower))
    logits = [p.Wo @ h for h, _ in states]  # bare ops
    logits = [y + p.bo for y in logits]
    losses = [vpps.cross_entropy(y, label) for y, label in zip(logits, d.labels.tolist(), strict=True)]
    return Recorded(vpps.sum(losses), [[h for h, _ in states], [c for _, c in states]], x)


tree_lstm = Network(
    {"U": (5 * H, X + 2 * H), "b": (5 * H,), **OUT},
    _tree_lstm_cells, _tree_lstm_data, _tree_lstm_bulk, _tree_lstm_calls,
)  # fmt: skip

# ---- child-sum: any number of children


def _child_sum_cells(p: Any) -> Cells:
    def node(hs: Any, cs: Any, x: Any) -> Any:
        wi, wo, wu, wf = vpps.split(p.W @ x + p.b, 4)
        ui, uo, uu = vpps.split(p.U @ vpps.sum(hs), 3)
        kept = vpps.sum(vpps.each(lambda h, c: vpps.sigmoid(wf + p.Uf @ h) * c, hs, cs))
        return _memorise(wi + ui, wo + uo, wu + uu, kept)

    return {"node": node, "node_loss": _node_loss(p)}


def ragged_forest(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    """Children of n vertices that are trees with any number of children, children first: CSR."""
    offsets, indices = [0], []
    roots: list[int] = []
    for v in range(n):
        take = min(int(rng.integers(0, 4)), len(roots))
        indices += [roots.pop() for _ in range(take)][::-1]
        roots.append(v)
        offsets.append(len(indices))
    return np.array(offsets), np.array(indices, np.int32)


def _child_sum_data(rng: np.random.Generator, n: int) -> Any:
    offsets, indices = ragged_forest(rng, 8 * n)
    words = rng.integers(0, WORDS, 8 * n)
    return SimpleNamespace(children=(offsets, indices), words=words, labels=rng.integers(0, CLASSES, 8 * n))


def _child_sum_bulk(graph: vpps.Graph, cells: Cells, p: Any, d: Any) -> Recorded:
    x = graph.lookup(p.words, d.words)
    h, c = graph.map(cells["node"], children=d.children, inputs={"x": x})
    return Recorded(vpps.sum(cells["node_loss"](h, d.labels)), [h, c])


def _child_sum_calls(g: vpps.Graph, cells: Cells, p: Any, d: Any) -> Recorded:
    offsets, indices = d.children
    x = [g.lookup(p.words, word) for word in d.words.tolist()]
    states: list[Any] = []
    for v, own in enumerate(x):
        lower = [states[k] for k in indices[offsets[v] : offsets[v + 1]]]
        states.append(g.call(cells["node"], [h for h, _ in lower], [c for _, c in lower], own))
    losses = [g.call(cells["node_loss"], h, y) for (h, _), y in zip(states, d.labels.tolist(), strict=True)]
    return Recorded(vpps.sum(losses), [[h for h, _ in states], [c for _, c in states]])


child_sum = Network(
    {"words": (WORDS, X), "W": (4 * H, X), "b": (4 * H,), "U": (3 * H, H), "Uf": (H, H), **OUT},
    _child_sum_cells, _child_sum_data, _child_sum_bulk, _child_sum_calls,
)  # fmt: skip

# ---- encoder, decoder with attention: three maps and what connects them


def _seq2seq_cells(p: Any) -> Cells:
    def encode(h: Any, c: Any, word: Any) -> Any:
        i, o, u, keep = vpps.split(p.We @ vpps.concat([vpps.lookup(p.words, word), h]) + p.be, 4)
        return _memorise(i, o, u, vpps.sigmoid(keep) * c)

    def decode(h: Any, c: Any, word: Any, memory: Any) -> Any:
        weights = vpps.softmax(vpps.each(lambda m: vpps.dot(m, h), memory))
        context = vpps.sum(vpps.each(lambda w, m: w * m, weights, memory))
        i, o, u, keep = vpps.split(p.Wd @ vpps.concat([vpps.lookup(p.words, word), h, context]) + p.bd, 4)
        return _memorise(i, o, u, vpps.sigmoid(keep) * c)

    def begin(word: Any, memory: Any, h0: Any, c0: Any) -> Any:
        return decode(h0, vpps.tanh(c0), word, memory)

    return {"encode": encode, "decode": decode, "begin": begin, "node_loss": _node_loss(p)}


def _seq2seq_data(rng: np.random.Generator, n: int) -> Any:
    source, target = rng.integers(1, 6, n), rng.integers(1, 5, n)
    ends, target_ends = np.cumsum(source), np.cumsum(target)
    before = np.arange(-1, source.sum() - 1)
    before[ends - source] = -1
    decoded = np.arange(-1, target.sum() - 1)
    decoded[target_ends - target] = -1
    sentence = np.repeat(np.arange(n), target)
    return SimpleNamespace(
        before=before,
        words=rng.integers(0, WORDS, len(before)),
        decoded=decoded,
        kind=(decoded >= 0).astype(np.int8),
        target=rng.integers(0, WORDS, len(decoded)),
        labels=rng.integers(0, CLASSES, len(decoded)),
        last=ends[sentence] - 1,  # of the sentence of each target word
        first=(ends - source)[sentence],
    )


def _seq2seq_bulk(graph: vpps.Graph, cells: Cells, p: Any, d: Any) -> Recorded:
    h, c = graph.map(cells["encode"], children=d.before, inputs={"word": d.words})
    lengths = d.last + 1 - d.first
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    memory = h[np.concatenate([np.arange(a, b + 1) for a, b in zip(d.first, d.last, strict=True)])]
    inputs = {"word": d.target, "memory": (offsets, memory), "h0": h[d.last], "c0": c[d.last]}
    dh, dc = graph.map([cells["begin"], cells["decode"]], kind=d.kind, children=d.decoded, inputs=inputs)
    return Recorded(vpps.sum(cells["node_loss"](dh, d.labels)), [h, c, dh, dc])


def _seq2seq_calls(g: vpps.Graph, cells: Cells, p: Any, d: Any) -> Recorded:
    zeros = (g.zeros(H), g.zeros(H))
    states: list[Any] = []
    for before, word in zip(d.before, d.words.tolist(), strict=True):
        states.append(g.call(cells["encode"], *(zeros if before < 0 else states[before]), word))
    decoded: list[Any] = []
    for v, (before, word) in enumerate(zip(d.decoded, d.target.tolist(), strict=True)):
        memory = [h for h, _ in states[d.first[v] : d.last[v] + 1]]
        if before < 0:
            decoded.append(g.call(cells["begin"], word, memory, *states[d.last[v]]))
        else:
            decoded.append(g.call(cells["decode"], *decoded[before], word, memory))
    losses = [g.call(cells["node_loss"], h, y) for (h, _), y in zip(decoded, d.labels.tolist(), strict=True)]
    return Recorded(vpps.sum(losses), [[s[k] for s in run] for run in (states, decoded) for k in (0, 1)])


seq2seq = Network(
    {"words": (WORDS, X), "We": (4 * H, X + H), "be": (4 * H,), "Wd": (4 * H, X + 2 * H), "bd": (4 * H,), **OUT},
    _seq2seq_cells, _seq2seq_data, _seq2seq_bulk, _seq2seq_calls,
)  # fmt: skip

# ---- a lattice: words join the characters where they begin and end (Zhang & Yang 2018); vertices in any order


def _lattice_cells(p: Any) -> Cells:
    def character(hs: Any, cs: Any, symbol: Any) -> Any:
        e = vpps.lookup(p.words, symbol)
        gates = vpps.each(lambda h: vpps.dot(p.v, vpps.tanh(p.Ua @ h)), hs)
        weights = vpps.softmax(gates)
        c = vpps.sum(vpps.each(lambda w, c: w * c, weights, cs))
        h = vpps.sum(vpps.each(lambda w, h: w * h, weights, hs))
        i, o, u, keep = vpps.split(p.W @ vpps.concat([e, h]) + p.b, 4)
        return _memorise(i, o, u, vpps.sigmoid(keep) * c)

    def word(hs: Any, cs: Any, symbol: Any) -> Any:
        i, u, keep = vpps.split(p.Ww @ vpps.concat([vpps.lookup(p.words, symbol), vpps.sum(hs)]), 3)
        c = vpps.sigmoid(keep) * vpps.sum(cs) + vpps.sigmoid(i) * vpps.tanh(u)
        return vpps.tanh(c), c

    return {"character": character, "word": word, "node_loss": _node_loss(p)}


def _lattice_data(rng: np.random.Generator, n: int) -> Any:
    children: list[list[int]] = []
    kind: list[int] = []
    for _ in range(n):
        before = -1
        characters: list[int] = []
        ending: dict[int, list[int]] = {}
        for position in range(int(rng.integers(3, 7))):
            lower = ([before] if before >= 0 else []) + ending.pop(position, [])
            before = len(children)
            children.append(lower)
            kind.append(0)
            characters.append(before)
            if rng.random() < 0.6:  # a word that begins here
                ending.setdefault(position + int(rng.integers(1, 4)), []).append(len(children))
                children.append([before])
                kind.append(1)
    offsets = np.cumsum([0, *map(len, children)])
    symbols = rng.integers(0, WORDS, len(kind))
    indices = np.array([k for lower in children for k in lower], np.int64)
    labels = rng.integers(0, CLASSES, len(kind))
    return SimpleNamespace(children=(offsets, indices), kind=np.array(kind, np.int8), symbols=symbols, labels=labels)


def _lattice_bulk(graph: vpps.Graph, cells: Cells, p: Any, d: Any) -> Recorded:
    kinds = [cells["character"], cells["word"]]
    h, c = graph.map(kinds, kind=d.kind, children=d.children, inputs={"symbol": d.symbols}, state=(H, H))
    tagged = np.flatnonzero(d.kind == 0)
    return Recorded(vpps.sum(cells["node_loss"](h[tagged], d.labels[tagged])), [h, c])


def _lattice_calls(g: vpps.Graph, cells: Cells, p: Any, d: Any) -> Recorded:
    offsets, indices = d.children
    states: list[Any] = []
    for v, symbol in enumerate(d.symbols.tolist()):
        lower = [states[k] for k in indices[offsets[v] : offsets[v + 1]]]
        cell = cells["word" if d.kind[v] else "character"]
        states.append(g.call(cell, [h for h, _ in lower], [c for _, c in lower], symbol))
    tagged = np.flatnonzero(d.kind == 0).tolist()
    losses = [g.call(cells["node_loss"], states[v][0], int(d.labels[v])) for v in tagged]
    return Recorded(vpps.sum(losses), [[h for h, _ in states], [c for _, c in states]])


lattice = Network(
    {"words": (WORDS, X), "W": (4 * H, X + H), "b": (4 * H,), "Ww": (3 * H, X + H), "Ua": (H, H), "v": (H,), **OUT},
    _lattice_cells, _lattice_data, _lattice_bulk, _lattice_calls,
)  # fmt: skip

# ---- edges of several types, which are columns of a set: lists of children, and a table of two

TYPES = 3


def _typed_cells(p: Any) -> Cells:
    def node(x: Any, hs: Any, embedded: Any, matrices: Any, one_hot: Any) -> Any:
        total = p.U @ x + vpps.sum(vpps.each(lambda h, matrix: matrix @ h, hs, matrices))
        total = total + vpps.sum(vpps.each(lambda h, r: vpps.tanh(p.R @ r) * h, hs, embedded))
        for t, matrix in enumerate((p.W0, p.W1, p.W2)):
            total = total + matrix @ vpps.sum(vpps.each(lambda h, types: vpps.pick(types, t) * h, hs, one_hot))  # noqa: B023
        return vpps.tanh(total)

    return {"node": node, "node_loss": _node_loss(p)}


def _typed_data(rng: np.random.Generator, n: int) -> GraphBatch:
    parts = [ragged_forest(rng, 8) for _ in range(n)]
    indices = np.concatenate([some for _, some in parts])
    graphs = GraphSet(
        [8] * n, (np.cumsum([0, *(k for ends, _ in parts for k in np.diff(ends))]), indices),
        columns={"x": rng.normal(size=(8 * n, X)), "label": rng.integers(0, CLASSES, 8 * n)},
        edge_columns={"type": rng.integers(0, TYPES, len(indices))},
    )  # fmt: skip
    return graphs[rng.permutation(n)]


def _typed_bulk(graph: vpps.Graph, cells: Cells, p: Any, batch: GraphBatch) -> Recorded:
    types, x = batch["type"], graph.rows(batch["x"], grad=True)
    of_edges = {
        "embedded": graph.lookup(p.words, np.arange(TYPES))[types],
        "matrices": graph.lookup(p.matrices, np.arange(TYPES))[types],
        "one_hot": graph.rows(np.eye(TYPES)[types], grad=True),
    }
    inputs = {name: (batch.child_offsets, rows) for name, rows in of_edges.items()}
    h = graph.map({"vertex": cells["node"]}, **batch.structure, inputs={"x": x, **inputs})
    return Recorded(vpps.sum(cells["node_loss"](h, batch["label"])), [h], x)


def _typed_calls(g: vpps.Graph, cells: Cells, p: Any, batch: GraphBatch) -> Recorded:
    x = [g.input(row, grad=True) for row in batch["x"]]
    embedded, matrices = ([g.lookup(table, t) for t in range(TYPES)] for table in (p.words, p.matrices))
    types = batch["type"].tolist()
    one_hot = [g.input(np.eye(TYPES)[t], grad=True) for t in types]
    offsets, indices = batch.children
    states: list[Any] = []
    for v, own in enumerate(x):
        edges = range(offsets[v], offsets[v + 1])
        of_edges = [[rows[types[e]] for e in edges] for rows in (embedded, matrices)]
        below = [states[indices[e]] for e in edges]
        states.append(g.call(cells["node"], own, below, *of_edges, [one_hot[e] for e in edges]))
    losses = [g.call(cells["node_loss"], h, y) for h, y in zip(states, batch["label"].tolist(), strict=True)]
    return Recorded(vpps.sum(losses), [states], x)


typed_edges = Network(
    {
        "words": (WORDS, X), "matrices": (TYPES, H, H), "U": (H, X), "R": (H, X),
        **{f"W{t}": (H, H) for t in range(TYPES)}, **OUT,
    },
    _typed_cells, _typed_data, _typed_bulk, _typed_calls,
)  # fmt: skip


NETWORKS = {
    "two kinds": two_kinds,
    "tree-lstm": tree_lstm,
    "child-sum": child_sum,
    "seq2seq": seq2seq,
    "lattice": lattice,
    "typed edges": typed_edges,
}
