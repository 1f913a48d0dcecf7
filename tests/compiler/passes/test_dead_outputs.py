"""Dead outputs: an unread output gets no backward, and inference does not compute it."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import vpps
from tests.comparison import FORWARD_TOLERANCE, GRADIENT_TOLERANCE, relative_error
from tests.compiler.passes.cells import NONE, lowered, notes
from vpps.compiler.lower import LoweredCell
from vpps.placement.distribution import Distribution
from vpps.planner.planner import Planner
from vpps.reference import Reference, weights_of

pytestmark = pytest.mark.cpu

H = 20


class Net:
    """A recurrent cell with three results; graphs read some of them."""

    def __init__(self, model: vpps.Model) -> None:
        self.U, self.V, self.W = (model.parameter(name, (H, H)) for name in "UVW")

    @vpps.cell
    def step(self, x: vpps.Expression, h: vpps.Expression) -> tuple[vpps.Expression, vpps.Expression, vpps.Expression]:
        """Return the next state, a prediction from it, and a second prediction."""
        h = vpps.tanh(self.U @ h + x)
        return h, vpps.tanh(self.V @ h), vpps.sigmoid(self.W @ h) * h

    def chain(self, n: int, reads: int = 1) -> tuple[vpps.Graph, vpps.Expression, list[tuple[vpps.Expression, ...]]]:
        """Return a graph, a loss that reads the first `reads` results, and all results."""
        rng = np.random.default_rng(0)
        graph = vpps.Graph()
        h = graph.zeros(H)
        found = []
        for _ in range(n):
            found.append(self.step(graph.input(rng.normal(size=H)), h))
            h = found[-1][0]
        return graph, vpps.sum([vpps.sum(x) for results in found for x in results[:reads]]), found


def multiplied(cell: LoweredCell) -> list[str]:
    """Return the matrices of a cell's products."""
    products = [cell.cell.nodes[i.node].parameter for i in cell.forward if i.name == "matvec"]
    return ["U" if p is None else p.name for p in products]  # U's product includes the addition of x


def unread_of(model: vpps.Model, graph: vpps.Graph, asked: list[vpps.Expression]) -> list[str]:
    """Return the notes on unread outputs if these values are requested."""
    planner = Planner(Distribution(model, 1, 16, 0, train=False))
    planner.plan_forward(graph, asked)
    notes = [note for of_cell in planner.cells.notes.values() for note in of_cell]
    return [said.partition(":")[0] for name, said in notes if name == "dead_outputs"]


def test_what_needed_vertices_read_is_read():
    model = vpps.Model()
    net = Net(model)
    graph, loss, found = net.chain(3)

    def unread(*asked: vpps.Expression) -> list[str]:
        return unread_of(model, graph, list(asked))

    assert unread(loss) == ["nothing reads outputs 2, 3 of 3"]
    assert unread(loss, found[1][2]) == ["nothing reads output 2 of 3"]
    other = vpps.sum(found[2][1])  # read, but the loss does not depend on it
    assert unread(loss) == ["nothing reads outputs 2, 3 of 3"]
    assert unread(loss, other) == ["nothing reads output 3 of 3"]
    assert unread(found[2][2]) == ["nothing reads output 2 of 3"]


@pytest.mark.parametrize("lazy", [False, True])
def test_training_has_no_backward_of_dead_outputs(lazy: bool):
    model = vpps.Model(seed=1)
    graph, loss, found = Net(model).chain(4)
    reference = Reference(graph, weights_of(model))
    with vpps.Handle(model, passes=replace(NONE, lazy_batching=lazy)) as handle:
        _, gradients = handle.gradients(graph, loss)
        cells = lowered(handle, "step")
        backward = [i.name for cell in cells for i in cell.backward]
        assert sorted(name for cell in cells for name in multiplied(cell)) == ["U", "V", "W"]
        assert {g.parameter.name for cell in cells for g in cell.parameter_gradients} == {"U"}
        assert [name for name in backward if name != "copy"] == ["gather_sum", "tanh.grad0", "matvec"]
        assert ("dead_outputs", "nothing reads outputs 2, 3 of 3: no backward") in notes(handle, "step")
        for x in (x for results in found for x in results):
            assert relative_error(handle.value(x), reference.value(x)) <= FORWARD_TOLERANCE
    assert list(gradients) == ["U"]
    assert relative_error(gradients["U"], reference.backward(loss)["U"]) <= GRADIENT_TOLERANCE


@pytest.mark.parametrize("lazy", [False, True])
def test_inference_computes_what_is_asked_for(lazy: bool):
    model = vpps.Model(seed=1)
    net = Net(model)
    graph, loss, found = net.chain(4, reads=3)
    with vpps.Handle(model, passes=replace(NONE, lazy_batching=lazy)) as handle:
        handle.gradients(graph, loss)
        trained = {x: handle.value(x) for results in found for x in results}
        for k, matrices in enumerate((["U"], ["U", "V"], ["U", "W"])):
            for asked in ([found[-1][k]], [results[k] for results in found]):
                for x, value in zip(asked, handle.forward(graph, asked), strict=True):
                    assert value.tobytes() == trained[x].tobytes()
                assert sorted(name for cell in lowered(handle, "step") for name in multiplied(cell)) == matrices
        with pytest.raises(vpps.GraphError, match="ask for it there"):
            handle.value(found[-1][1])
        handle.forward(graph, [loss])
        assert sorted(name for cell in lowered(handle, "step") for name in multiplied(cell)) == ["U", "V", "W"]
        assert ("dead_outputs", "nothing reads outputs 2, 3 of 3: not computed in inference") in notes(handle, "step")


def test_a_loss_that_depends_on_nothing_trained_is_refused():
    model = vpps.Model()
    W = model.parameter("W", (H, H))

    @vpps.cell
    def both(x):
        return vpps.tanh(x), W @ x

    graph = vpps.Graph()
    a, b = both(graph.input(np.ones(H)))
    with vpps.Handle(model, passes=NONE) as handle:
        with pytest.raises(vpps.GraphError, match=re.escape("depends on no trainable parameter")):
            handle.gradients(graph, vpps.sum(a))
        assert handle.gradients(graph, vpps.sum(b))[1]["W"].any()


def test_infinite_dead_outputs_reach_no_weight():
    """Zero times infinity is NaN; without a backward, it does not occur."""
    model = vpps.Model()
    W = model.parameter("W", (H, H), init="ones")

    @vpps.cell
    def both(x):
        y = W @ x
        return vpps.tanh(y * 0.01), vpps.exp(vpps.exp(y))

    graph = vpps.Graph()
    a, _ = both(graph.input(np.ones(H)))
    with vpps.Handle(model, passes=NONE) as handle:
        assert np.isfinite(handle.gradients(graph, vpps.sum(a))[1]["W"]).all()
