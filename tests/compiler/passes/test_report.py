"""`handle.explain()` describes how the passes change each cell."""

import re

import pytest

import vpps
from vpps.compiler.passes import Passes
from vpps.nn import LSTM

pytestmark = pytest.mark.cpu


def explained(passes: Passes) -> str:
    model = vpps.Model(seed=1)
    layer = LSTM(model, 8, 16)
    Wo = model.parameter("Wo", (3, 16))

    @vpps.cell
    def step(x, h, c, label):
        h, c = layer.step(x, h, c)
        return h, c, vpps.cross_entropy(Wo @ h, label)

    graph = vpps.Graph()
    h = c = graph.zeros(16)
    losses = []
    for k in range(4):
        h, c, loss = step(graph.input([0.1 * k] * 8), h, c, k % 3)
        losses.append(loss)
    with vpps.Handle(model, passes=passes, vps=2) as handle:
        assert "cell step" not in handle.explain()
        handle.gradients(graph, vpps.sum(losses))
        text = handle.explain()
    return re.sub(r"\s+", " ", text)


def test_every_pass_is_named_with_what_it_did() -> None:
    text = explained(Passes())
    assert "cell step constants" in text
    assert "in 3 parts: 1 operator (affine) before the first level;" in text
    assert "2 operators (affine, cross_entropy) after the last" in text
    assert re.search(r"fusion \d+ operations in \d+ tails", text)
    assert "in the pauses between levels" in text
    assert re.search(r"peak \d+ KiB of the pool at most so far", text)
    assert re.search(r"latest call \d+ barriers; lists of \d+ words", text)


def test_passes_that_are_off_are_not_named() -> None:
    text = explained(Passes(*[False] * 4))
    for name in ("horizontal", "lazy_batching", "fusion", "streaming"):
        assert name not in text
    assert "cell step constants" in text
