"""A table row is used if the loss depends on a vertex that looks it up, under all passes, whatever reads other
vertices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import vpps
from tests.compiler.passes.cells import NONE
from vpps.compiler.passes import Passes
from vpps.reference import Reference, weights_of

pytestmark = pytest.mark.cpu

H, ROWS = 8, 12
PASSES = {"default": Passes(), "none": NONE, "parts": replace(NONE, lazy_batching=True)}


class Net:
    """A recurrent cell that uses lookups in every way."""

    def __init__(self, model: vpps.Model) -> None:
        self.model = model
        self.W = model.parameter("W", (H, H))
        self.E, self.F = (model.lookup(name, (ROWS, H), init=1.0) for name in "EF")

    @vpps.cell
    def step(self, h, i, j, k):
        """Return the next state, and two results that are read only on request."""
        gone = vpps.concat([vpps.lookup(self.E, j), h])[H:]  # a pass replaces it by `h`
        fixed = vpps.stop_gradient(vpps.lookup(self.E, k))
        held = vpps.stop_gradient(vpps.tanh(vpps.lookup(self.E, 10)) + h)  # crosses between parts, with no gradient
        unread = vpps.lookup(self.F, 2) * h
        return vpps.tanh(self.W @ h + gone + fixed + held), vpps.lookup(self.E, i) * h, unread

    def batch(self, read: bool = False) -> tuple[vpps.Graph, vpps.Expression]:
        """Record two steps that the loss depends on, and one that it does not. `read`: also read the second result of a
        third step."""
        graph = vpps.Graph()
        h = graph.input(np.linspace(0, 1, H))
        first = self.step(h, 0, 4, 7)
        second = self.step(first[0], 1, 5, 8)
        self.step(second[0], 2, 6, 9)
        loss = vpps.sum(second[0])
        if read:
            loss = loss + 1e-9 * vpps.sum(self.step(first[0], 0, 4, 7)[1])
        return graph, loss


USED = {False: {"E": [4, 5], "F": []}, True: {"E": [0, 4, 5], "F": []}}


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("passes", PASSES.values(), ids=PASSES)
def test_used_rows_are_a_fact_of_the_graph(passes: Passes, read: bool) -> None:
    net = Net(vpps.Model(seed=1))
    graph, loss = net.batch(read)
    reference = Reference(graph, weights_of(net.model))
    reference.backward(loss)
    with vpps.Handle(net.model, vpps.SGD(0.1, weight_decay=0.1), target="cpu", vps=2, passes=passes) as handle:
        handle.fb(graph, loss)
        for name, rows in USED[read].items():
            changed = np.flatnonzero((net.model[name].numpy() != 1).any(axis=1))
            assert changed.tolist() == rows
            assert reference.touched_rows(net.model[name]).tolist() == rows


@pytest.mark.parametrize("make", [lambda: vpps.Momentum(0.1, weight_decay=0.1), lambda: vpps.Adam(0.1)])
def test_an_update_without_a_gradient_is_one_with_zero(make: Callable[[], vpps.Optimizer]) -> None:
    """Covers accumulating, clipping and averaging: the moments of rows without a gradient advance."""
    found = []
    for passes in (NONE, PASSES["parts"]):
        net = Net(vpps.Model(seed=1))
        with vpps.Handle(net.model, make(), target="cpu", vps=2, passes=passes, ema=0.5, clip_norm=1.0) as handle:
            for read in (True, False, False):
                handle.fb(*net.batch(read))
            handle.fb(*net.batch(), accumulate=True)
            handle.fb(*net.batch(read=True), accumulate=True)
            handle.fb(*net.batch())
        state = net.model.optimizer_state
        assert state is not None
        assert state.moments["m"]["E"][5].any() == isinstance(make(), vpps.Momentum)
        found.append({p.name: np.stack([p.numpy(), p.average()]) for p in net.model})
    for name, values in found[0].items():
        np.testing.assert_allclose(found[1][name], values, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("passes", PASSES.values(), ids=PASSES)
def test_paths_lead_from_output_to_output(passes: Passes) -> None:
    """The loss reads one of a chain's two results; a stopped state and a condition lead nowhere."""
    model = vpps.Model(seed=1)
    W, V, U, B = (model.parameter(name, (H, H)) for name in "WVUB")
    E = model.lookup("E", (ROWS, H), init=1.0)

    @vpps.cell(elements={"xs": (H,)})
    def step(h, c, xs, i, j):
        h = vpps.tanh(W @ h + vpps.lookup(E, i) + vpps.sum(xs)) * c
        return h, vpps.tanh(V @ c + vpps.lookup(E, j) + vpps.stop_gradient(h))

    def batch() -> tuple[vpps.Graph, vpps.Expression]:
        graph = vpps.Graph()
        x = graph.input(np.linspace(0, 1, H))
        u, b, c = U @ x, B @ x, graph.zeros(H)
        h = u
        for t in range(3):
            h, c = step(h, c, [b, h], t, t + 4)
        return graph, vpps.sum(vpps.where(u, c, vpps.tanh(c)) + vpps.stop_gradient(b))

    graph, loss = batch()
    reference = Reference(graph, weights_of(model))
    reference.backward(loss)
    assert reference.reached == {"V", "E"}
    with vpps.Handle(model, vpps.SGD(0.1, weight_decay=0.1), target="cpu", vps=2, passes=passes) as handle:
        before = model.numpy()
        assert sorted(handle.gradients(graph, loss)[1]) == ["E", "V"]
        handle.fb(graph, loss)
    changed = {name: np.flatnonzero((w != before[name]).any(axis=1)).tolist() for name, w in model.numpy().items()}
    assert changed == {"W": [], "V": list(range(H)), "U": [], "B": [], "E": [4, 5, 6]}
