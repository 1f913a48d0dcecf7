"""Values that another handle kept, and lists that contain themselves: errors in words."""

from __future__ import annotations

import pickle

import pytest

import vpps

pytestmark = pytest.mark.cpu


def test_values_of_another_handle() -> None:
    handles = []
    for _ in range(2):
        model = vpps.Model()
        W = model.parameter("W", (2, 2))
        handles.append(vpps.Handle(model, vpps.SGD(lr=0.1), target="cpu", vps=1))
    graph = vpps.Graph()
    handles[1].forward(graph, [vpps.sum(W @ graph.input([1.0, 2.0]))], keep=True)
    with pytest.raises(vpps.HandleError, match="another handle computed it"):
        handles[0].backward([1.0], handles[1].kept)
    with pytest.raises(vpps.HandleError, match=r"expected what handle\.kept was"):
        handles[0].backward([1.0], "kept")  # type: ignore[arg-type]


@pytest.mark.parametrize("function", [vpps.sum, vpps.mean, vpps.stack, vpps.concat])
def test_a_list_that_contains_itself(function: object) -> None:
    items: list[object] = [vpps.Graph().zeros(2)]
    items.append(items)
    with pytest.raises(vpps.GraphError, match="contains itself"):
        function(items)  # type: ignore[operator]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickling_a_parameter(protocol: int) -> None:
    with pytest.raises(vpps.ModelError, match="cannot be pickled"):
        pickle.dumps(vpps.Model().parameter("W", (2, 2)), protocol)
