"""Constant folding removes ops without effect, and only if no bit changes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import vpps
from tests.compiler.passes.cells import assert_node_passes_change_no_bit_forward, operations, traced
from vpps.compiler.passes.constants import fold_constants

H = 12
SPECIAL = [0.0, -0.0, np.inf, -np.inf, 1e-45, -1e-45, 1.1754944e-38, 3.4e38, 1.0, -2.5, 1 / 3, 16777217.0]

GONE: dict[str, Callable[[vpps.Expression], vpps.Expression]] = {
    "x * 1": lambda x: x * 1,
    "x / 1.0": lambda x: x / 1.0,
    "x - 0": lambda x: x - 0,
    "x + -0.0": lambda x: x + -0.0,
    "--x": lambda x: -(-x),  # noqa: B002
    "sum of one": lambda x: vpps.sum([x]),
    "largest of one": lambda x: vpps.max([x]),
    "whole slice": lambda x: x[:],
    "reshaped twice": lambda x: vpps.reshape(vpps.reshape(x, (3, 4)), H),
    "transposed twice": lambda x: vpps.reshape(vpps.reshape(x, (3, 4)).T.T, H),
    "split and joined": lambda x: vpps.concat(vpps.split(x, 3)),
    "its elements": lambda x: vpps.concat([x[i] for i in range(H)]),
    "rows joined": lambda x: vpps.reshape((lambda m: vpps.concat([m[:1], m[1:]]))(vpps.reshape(x, (3, 4))), H),
    "joined and split": lambda x: vpps.concat([x, x * 2])[:H],
}

SIMPLER: dict[str, tuple[Callable[[vpps.Expression], vpps.Expression], list[str]]] = {
    "-(x * 3)": (lambda x: -(x * 3), ["scale"]), "(-x) * 3": (lambda x: -x * 3, ["scale"]),
    "x * -1 * ...": (lambda x: -(-x * 3), ["scale"]), "y - -x": (lambda x: vpps.tanh(x) - -x, ["tanh", "add"]),
    "-x + y": (lambda x: -x + vpps.tanh(x), ["tanh", "sub"]), "y + -x": (lambda x: vpps.tanh(x) + -x, ["tanh", "sub"]),
    "-x * -y": (lambda x: -x * -vpps.tanh(x), ["tanh", "mul"]), "x * x": (lambda x: x * x, ["square"]),
    "-x * -x": (lambda x: -x * -x, ["square"]), "|-x|": (lambda x: vpps.abs(-x), ["abs"]),
    "||x||": (lambda x: vpps.abs(vpps.abs(x)), ["abs"]), "|x|^2": (lambda x: vpps.abs(x) ** 2, ["square"]),
    "relu relu": (lambda x: vpps.relu(vpps.relu(x)), ["relu"]), "slice of slice": (lambda x: x[2:10][1:4], ["slice"]),
    "element of slice": (lambda x: x[2:10][3], ["slice"]),
    "slice of a part": (lambda x: vpps.concat([vpps.tanh(x), x])[H + 2 : H + 5], ["slice"]),
    "neighbours": (lambda x: vpps.concat([x[2:4], x[4:9]]), ["slice"]),
    "two splits": (lambda x: vpps.concat([*vpps.split(x, 2), *vpps.split(x, 3)]), ["concat"]),
    "three shapes": (lambda x: vpps.reshape(vpps.reshape(x, (3, 4)), (4, 3)), ["reshape"]),
}  # fmt: skip

LEFT: dict[str, Callable[[vpps.Expression], vpps.Expression]] = {
    "x + 0": lambda x: x + 0, "x * a * b": lambda x: x * 3 * 0.7, "x + a + b": lambda x: x + 3 + 0.7,
    "x - x": lambda x: x - x, "0 * x": lambda x: x * 0, "other order": lambda x: vpps.concat([x[6:], x[:6]]),
    "gap": lambda x: vpps.concat([x[:4], x[5:]]), "one transpose": lambda x: vpps.reshape(vpps.reshape(x, (3, 4)).T, H),
    "across parts": lambda x: vpps.concat([vpps.tanh(x), x])[H - 2 : H + 2], "stopped": lambda x: vpps.stop_gradient(x),
    "max(x, x)": lambda x: vpps.maximum(x, x),
}  # fmt: skip


@pytest.mark.parametrize("name", GONE)
def test_what_changes_nothing_goes(name):
    cell = traced(lambda x: GONE[name](x), (H,))
    found, said = fold_constants(cell)
    assert operations(found) == []
    assert said.startswith("left out: ")
    assert len(found.nodes) == len(cell.nodes)


@pytest.mark.parametrize("name", SIMPLER)
def test_two_operations_become_one(name):
    function, expected = SIMPLER[name]
    found, said = fold_constants(traced(lambda x: function(x), (H,)))
    assert operations(found) == expected
    assert said != "nothing to fold"


@pytest.mark.parametrize("name", LEFT)
def test_what_would_change_a_bit_stays(name):
    cell = traced(lambda x: LEFT[name](x), (H,))
    found, said = fold_constants(cell)
    assert found is cell
    assert said == "nothing to fold"


def test_gradients_are_stopped_where_there_are_any():
    model = vpps.Model()
    frozen, trained = model.parameter("f", (H,), trainable=False), model.parameter("t", (H,))
    cell = traced(lambda: (vpps.stop_gradient(vpps.tanh(frozen)), vpps.stop_gradient(vpps.tanh(trained))))
    assert operations(fold_constants(cell)[0]) == ["tanh", "tanh", "stop_gradient"]


def build_all(model: vpps.Model) -> tuple[vpps.Graph, vpps.Expression, list[vpps.Expression]]:
    """Every rule, on numbers at the edges of float32."""
    W = model.parameter("W", (H, H))

    @vpps.cell
    def fold(x):
        cases = [*GONE.values(), *(f for f, _ in SIMPLER.values()), *LEFT.values()]
        return [f(x) for f in cases]

    @vpps.cell
    def fold_trained(x):
        return [f(vpps.tanh(W @ x)) for f in [*GONE.values(), *(f for f, _ in SIMPLER.values()), *LEFT.values()]]

    graph = vpps.Graph()
    special = fold(graph.input(np.array(SPECIAL)))
    trained = fold_trained(graph.input(np.random.default_rng(0).normal(size=H)))
    loss = vpps.sum([vpps.sum(vpps.tanh(v)) for v in trained])
    return graph, loss, [*special, *trained]


@pytest.mark.cpu
def test_no_bit_changes_and_gradients_agree():
    with np.errstate(over="ignore"):
        assert_node_passes_change_no_bit_forward(build_all)
