"""Every user mistake raises the right class of error before anything runs. The message names the problem, the place and
the remedy. Afterwards graph, model and handle work as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vpps
from tests.classifier import new, same_bits
from tests.comparison import contents_of
from tests.errors import expressions, handles, maps
from tests.errors.expressions import World
from tests.errors.table import Mistake, parametrized
from vpps.reference import Reference, weights_of


@pytest.mark.host
@parametrized(expressions.MISTAKES)
def test_a_mistake_is_explained_and_leaves_the_graph_usable(
    mistake: Mistake, use_recorder: Callable[[str], None]
) -> None:
    said = set()
    for recorder in ("python", "compiled"):
        use_recorder(recorder)
        world, later, witness = World(), World(), World()
        later.calls()
        said.add(mistake.explained(world.names()))
        said |= {mistake.refused(w.names()) for w in (world, later)}  # cached by the first mistake, or by correct calls
        loss, expected = world.loss(), witness.loss()
        values = Reference(world.graph, weights_of(world.model)), Reference(witness.graph, weights_of(witness.model))
        assert values[0].value(loss) == values[1].value(expected)
        assert same_bits(values[0].backward(loss), values[1].backward(expected))
    assert len(said) == 1


@pytest.mark.cpu
def test_a_graph_trains_after_all_of_them() -> None:
    world, witness = World(), World()
    for mistake in expressions.MISTAKES:
        if "torch" not in mistake.call:
            mistake.refused(world.names())
    found = []
    for w in (world, witness):
        with vpps.Handle(w.model, vps=2) as handle:
            found.append(handle.gradients(w.graph, w.loss()))
    assert found[0][0] == found[1][0]
    assert same_bits(found[0][1], found[1][1])


@pytest.mark.host
@pytest.mark.parametrize("levels", [None, maps.LEVELS], ids=["levels found", "levels given"])
@parametrized(maps.MISTAKES)
def test_a_mistake_in_a_map_is_explained_by_both_recorders(
    mistake: Mistake, levels: Any, use_recorder: Callable[[str], None]
) -> None:
    if levels is not None and ("cycle" in mistake.message or "with_child(1, 0, 0)" in mistake.call):
        pytest.skip("no levels fit these children")
    said = []
    for recorder in ("python", "compiled"):
        use_recorder(recorder)
        world = maps.World(levels=levels)
        world.nodes()  # traced, so that compiled code can take over
        world.lists()
        before = contents_of(world.graph)
        said.append(mistake.explained(world.names()))
        assert contents_of(world.graph) == before
        results = world.nodes()
        assert np.isfinite(Reference(world.graph, weights_of(world.model)).value(results)).all()
    assert said[0] == said[1]


@pytest.mark.host
@parametrized(handles.WITHOUT_HANDLE)
def test_a_mistake_with_a_model_is_explained_and_changes_nothing(mistake: Mistake) -> None:
    world = World()
    before = world.model.numpy()
    mistake.explained({**world.names(), **handles.TOOLS})
    assert same_bits(world.model.numpy(), before)
    assert world.model.step == 0
    assert world.model.trainer is None
    assert world.model.parameter("p", (2,)).name == "p"  # the name is still free, and no scope is open


@pytest.fixture(scope="module")
def trained_twice() -> tuple[float, dict[str, Any]]:
    world = handles.World()
    for _ in range(2):
        world.handle.fb(world.graph, world.loss())
    return world.handle.sync_get_latest_loss(), world.model.numpy()


@pytest.mark.cpu
@parametrized(handles.MISTAKES)
def test_a_mistake_with_a_handle_is_explained_before_anything_runs(
    mistake: Mistake, trained_twice: tuple[float, dict[str, Any]]
) -> None:
    world = handles.World()
    with world.handle as handle:
        handle.fb(world.graph, world.loss())
        loss, before = handle.sync_get_latest_loss(), world.model.numpy()
        mistake.explained(world.names())
        assert same_bits(world.model.numpy(), before)
        assert world.model.step == 1
        assert handle.sync_get_latest_loss() == loss
        assert handle.value(world.y).shape == (4,)
        handle.fb(world.graph, world.loss())
        assert handle.sync_get_latest_loss() == trained_twice[0]
        assert same_bits(world.model.numpy(), trained_twice[1])


@pytest.mark.cpu
def test_a_refused_call_with_ints_and_lists_leaves_no_trace() -> None:
    world = World()

    @vpps.cell
    def weighted(word: int, xs: list[vpps.Expression], ys: list[vpps.Expression]) -> vpps.Expression:
        return vpps.lookup(world.E, word) + vpps.sum(vpps.each(lambda a, b: a * b, xs, ys))

    first = weighted(1, [world.x], [world.x])
    for mistake in ((2, [world.x] * 2, [world.x]), (99, [world.x], [world.x])):
        with pytest.raises((vpps.ShapeError, vpps.IndexRangeError)):
            weighted(*mistake)
    second = weighted(3, [world.x, world.x], [world.x, world.x])
    reference = Reference(world.graph, weights_of(world.model))
    with vpps.Handle(world.model, train=False) as handle:
        for value, e in zip(handle.forward(world.graph, [first, second]), (first, second), strict=True):
            np.testing.assert_allclose(value, reference.value(e), rtol=1e-6)


@pytest.mark.host
def test_an_expression_that_left_its_cell_is_refused() -> None:
    world = World()
    escaped: list[vpps.Expression] = []

    def leaks(x: vpps.Expression) -> vpps.Expression:
        escaped.append(vpps.tanh(x))
        return x + escaped[0]

    world.call(leaks, world.x)
    with pytest.raises((vpps.GraphError, vpps.TraceError), match="cell 'leaks'"):
        world.x + escaped[0]


@pytest.mark.host
def test_the_first_name_stays_taken_in_its_scope_only() -> None:
    model = vpps.Model()
    with model.scope("encoder"):
        model.parameter("W", (2, 2))
        with pytest.raises(vpps.ModelError, match="'encoder/W' is already"):
            model.parameter("W", (2, 2))
    model.parameter("W", (2, 2))
    with pytest.raises(vpps.ModelError, match="'encoder/W' is already"):
        model.parameter("encoder/W", (2, 2))


@pytest.mark.host
def test_the_default_target_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VPPS_TARGET", "abacus")
    with pytest.raises(vpps.HandleError, match=r"VPPS_TARGET=abacus.*'cpu'"):
        vpps.Handle(vpps.Model())


@pytest.mark.cpu
def test_training_handles_may_follow_one_another_and_forward_only_ones_stand_side_by_side() -> None:
    net = new()
    with vpps.Handle(net.model) as handle, vpps.Handle(net.model, train=False), vpps.Handle(net.model, train=False):
        with pytest.raises(vpps.HandleError):
            vpps.Handle(net.model)
        net.train(handle, range(1))
    with vpps.Handle(net.model) as handle:
        net.train(handle, range(1))


@pytest.mark.host
def test_expressions_can_be_kept_in_lists_sets_and_dicts() -> None:
    """Expressions are compared with each other by identity; only a comparison with a number is a mistake."""
    world = World()
    items = [world.x, world.y]
    assert items.index(world.y) == 1
    assert world.s not in items
    assert {world.x: 1, world.y: 2}[world.y] == 2
    assert world.x == world.x
    assert world.x != world.y
    assert world.b in [world.W, world.b]
    assert vpps.each(vpps.tanh, (e for e in items))[1].shape == (4,)
