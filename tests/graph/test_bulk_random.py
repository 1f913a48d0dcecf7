"""Random structures of random kinds: a map, and calls one by one in the same order, give the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vpps
from vpps.graph.levels import find_cycle, find_levels, raise_levels
from vpps.reference import Reference, weights_of

H = 8
MOST = 24  # vertices


def examples(n: int) -> settings:
    """So many of them, the same ones every time."""
    return settings(max_examples=n, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


class Cells:
    """Kinds of vertices for two children and for lists of them; with a state of one vector or two."""

    def __init__(self) -> None:
        self.model = vpps.Model(seed=1)
        U = self.model.parameter("U", (2 * H, 2 * H))
        b = self.model.parameter("b", (H,), init="normal")
        E = self.model.lookup("E", (7, H), init="normal")
        self.E = E

        @vpps.cell
        def word(k: Any) -> Any:
            x = vpps.lookup(E, k)
            return vpps.tanh(x + b), x * 0.5

        @vpps.cell
        def both(c: Any, h: Any, d: Any, g: Any, x: Any) -> Any:
            i, o = vpps.split(U @ vpps.concat([h, g]), 2)
            return vpps.tanh(i + x) + c - d, vpps.sigmoid(o) * (c + x)

        @vpps.cell
        def one(c: Any, h: Any, k: Any) -> Any:
            return vpps.tanh(h + vpps.lookup(E, k)), c * b

        @vpps.cell
        def summed(cs: Any, hs: Any, x: Any) -> Any:
            kept = vpps.each(lambda c, h: vpps.sigmoid(h * b) * c, cs, hs)
            return vpps.tanh(vpps.sum(kept) + x), vpps.max(hs) + x

        @vpps.cell
        def looked(cs: Any, hs: Any, k: Any) -> Any:
            return vpps.tanh(vpps.mean(cs) + vpps.lookup(E, k)), vpps.sum(hs) - b

        self.of_two, self.of_lists = [word, both, one], [summed, looked]
        self.handle: vpps.Handle | None = None


CELLS = Cells()


def record(
    fixed: bool, seed: int, n: int, deep: bool, missing: bool
) -> tuple[tuple[vpps.Graph, Any], tuple[vpps.Graph, Any]]:
    """A random graph in bulk and call by call; each with its loss."""
    rng = np.random.default_rng(seed)
    data = rng.normal(size=(n, H)).astype(np.float32)
    words = rng.integers(0, 7, n)
    bulk, single = vpps.Graph(), vpps.Graph()
    x = bulk.rows(data, grad=True)
    leaves = [single.input(row, grad=True) for row in data]
    mixed = rng.integers(0, n, n)
    if deep:  # inputs of several levels
        odd = np.arange(n) % 2 == 1
        y = vpps.tanh(x[odd])
        x = vpps.Rows(bulk, np.where(odd, np.append(y.ids, 0)[np.cumsum(odd) - 1], x.ids), (H,))
        raised = [vpps.tanh(e) for e in leaves[1::2]]
        leaves = [raised[v // 2] if v % 2 else e for v, e in enumerate(leaves)]
    x, leaves = x[mixed], [leaves[k] for k in mixed]
    states: list[Any] = []
    if fixed:
        children = np.full((n, 2), -1)
        kind = rng.integers(0, 3, n)
        for v in range(1, n):
            children[v, : (0, 2, 1)[kind[v]]] = rng.integers(-1, v, (0, 2, 1)[kind[v]])
        reads_zeros = (children[kind == 1] < 0).any() or (children[kind == 2, 0] < 0).any()
        c, h = bulk.map(CELLS.of_two, kind=kind, children=children, inputs={"k": words, "x": x})
        zero = single.zeros(H) if reads_zeros else None
        for v in range(n):
            lower = [e for k in children[v, : (0, 2, 1)[kind[v]]] for e in ((zero, zero) if k < 0 else states[k])]
            own = leaves[v] if kind[v] == 1 else int(words[v])
            states.append(single.call(CELLS.of_two[kind[v]], *lower, own))
    else:
        lengths = rng.integers(0, 4, n)
        lengths[:1] = 0
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        least = -1 if missing else 0
        indices = np.concatenate([rng.integers(least, max(v, 1), lengths[v]) for v in range(n)]).astype(np.int64)
        zeros = [single.zeros(H)] * 2 if (indices < 0).any() else []
        kind = rng.integers(0, 2, n)
        c, h = bulk.map(CELLS.of_lists, kind=kind, children=(offsets, indices), inputs={"k": words, "x": x})
        for v in range(n):
            lower = [zeros if k < 0 else states[k] for k in indices[offsets[v] : offsets[v + 1]]]
            own = int(words[v]) if kind[v] else leaves[v]
            states.append(single.call(CELLS.of_lists[kind[v]], [s[0] for s in lower], [s[1] for s in lower], own))
    wanted = np.unique(rng.integers(0, n, 4))
    loss = vpps.sum([vpps.sum(vpps.sum(c[wanted]) * vpps.mean(h[wanted]))])
    sums = vpps.sum([states[v][0] for v in wanted]) * vpps.mean([states[v][1] for v in wanted])
    return (bulk, loss), (single, vpps.sum([vpps.sum(sums)]))


structures = given(
    fixed=st.booleans(),
    seed=st.integers(0, 10**6),
    n=st.integers(1, MOST),
    deep=st.booleans(),
    missing=st.booleans(),
    policy=st.sampled_from(["sinks-last", "depth", "agenda", "critical"]),
)


@pytest.mark.cpu
@examples(150)
@structures
def test_a_random_map_gives_the_bits_of_calls_one_by_one(
    fixed: bool, seed: int, n: int, deep: bool, missing: bool, policy: str
) -> None:
    (bulk, loss), (single, expected_loss) = record(fixed, seed, n, deep, missing)
    assert len(bulk) == len(single)
    if CELLS.handle is None or CELLS.handle.policy != policy:
        if CELLS.handle is not None:
            CELLS.handle.close()
        CELLS.handle = vpps.Handle(CELLS.model, target="cpu", vps=2, policy=policy)
    value, gradients = CELLS.handle.gradients(bulk, loss)
    expected, expected_gradients = CELLS.handle.gradients(single, expected_loss)
    assert value == expected
    for name, gradient in gradients.items():
        assert gradient.tobytes() == expected_gradients[name].tobytes(), name
    reference = Reference(bulk, weights_of(CELLS.model))
    assert value == pytest.approx(float(reference.value(loss)), rel=1e-4, abs=1e-4)


edges = st.integers(1, 60).flatmap(
    lambda n: st.tuples(
        st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=150), st.booleans()
    )
)


def plain_levels(n: int, parents: list[int], children: list[int], floor: list[int]) -> list[int]:
    levels = list(floor)
    for _ in range(n):
        for p, c in zip(parents, children, strict=True):
            levels[p] = max(levels[p], levels[c] + 1)
    return levels


@pytest.mark.host
@examples(200)
@given(drawn=edges, narrow=st.sampled_from([1, 4, 32]), seed=st.integers(0, 99))
def test_levels_are_longest_distances(drawn: Any, narrow: int, seed: int) -> None:
    n, pairs, cyclic = drawn
    rng = np.random.default_rng(seed)
    name = rng.permutation(n)
    pairs = [(p, c) for p, c in pairs if cyclic or p > c]
    parents = np.array([name[p] for p, _ in pairs], np.int64)
    children = np.array([name[c] for _, c in pairs], np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vpps.graph.levels.NARROW", narrow)
        levels = find_levels(n, parents, children)
        if levels.min() < 0:
            cycle = find_cycle(levels, parents, children)
            found = set(zip(parents.tolist(), children.tolist(), strict=True))
            assert all(pair in found for pair in zip(cycle, cycle[1:] + cycle[:1], strict=True))
            return
        assert levels.tolist() == plain_levels(n, parents.tolist(), children.tolist(), [0] * n)
        floor = rng.integers(0, 4, n)
        order = np.argsort(parents, kind="stable")
        raised = raise_levels(levels, floor, parents[order], children[order])
    assert raised.tolist() == plain_levels(n, parents.tolist(), children.tolist(), floor.tolist())
