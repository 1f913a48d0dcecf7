"""Streaming: eager ops fill the pauses between levels, at the right places and with equal results."""

from __future__ import annotations

import numpy as np
import pytest

import vpps
from vpps.compiler.passes import Passes, lazy_batching
from vpps.nn import LSTM
from vpps.placement.distribution import Distribution
from vpps.planner.plan import Plan
from vpps.planner.planner import Planner
from vpps.script.disassemble import entry_points, instructions

pytestmark = pytest.mark.cpu


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_batching, "CHUNK_ROWS", 6)


@pytest.mark.parametrize(
    "chunk_rows, chunks",
    [
        (3, [6, 4, 3]),  # levels 0 and 1 before; 2 and 3 in the pause after level 0; 4 to 6 in the pause after level 2
        (4, [6, 7]),  # 4 to 6 are too few for a separate chunk
        (128, [13]),
    ],
)
def test_chunks_come_two_levels_ahead(chunk_rows: int, chunks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_batching, "CHUNK_ROWS", chunk_rows)
    model, graph, loss = tagger((7, 4, 2))  # levels of 3, 3, 2, 2, 1, 1 and 1 vertices
    plan = Planner(Distribution(model, 2, 16, 0, train=True)).plan_training(graph, loss, None, 0)
    (eager,) = (b for b in plan.blocks if b.pause)
    assert eager.count[:, 0].tolist() == chunks


def tagger(lengths: tuple[int, ...] = (9, 7, 8, 3)) -> tuple[vpps.Model, vpps.Graph, vpps.Expression]:
    model = vpps.Model(seed=1)
    layer = LSTM(model, 20, 64)
    Wo = model.parameter("Wo", (5, 64))
    rng = np.random.default_rng(0)
    graph = vpps.Graph()
    losses = []
    for length in lengths:
        xs = [graph.input(rng.normal(size=20).astype(np.float32), grad=True) for _ in range(length)]
        losses += [vpps.cross_entropy(Wo @ h, 1) for h in layer.sequence(graph, xs)]
    return model, graph, vpps.sum(losses)


def planned(passes: Passes) -> tuple[Plan, dict[str, bytes]]:
    model, graph, loss = tagger()
    with vpps.Handle(model, vps=2, passes=passes) as handle:
        _, gradients = handle.gradients(graph, loss)
        assert handle._engine.plan is not None
        return handle._engine.plan, {name: g.tobytes() for name, g in gradients.items()}


@pytest.mark.usefixtures("short_chunks")
def test_eager_products_stand_between_signal_and_wait() -> None:
    plan, gradients = planned(Passes.from_environment())
    assert plan.grouping is None
    found = [d.instruction.name for d in instructions(plan.script, entry_points(plan.script)[0])]
    pauses = [k for k in range(len(found) - 2) if found[k : k + 3] == ["signal", "matvec", "wait"]]
    assert len(pauses) > 2
    before, same = planned(Passes(streaming=False, fusion=False))
    found = [d.instruction.name for d in instructions(before.script, entry_points(before.script)[0])]
    assert "barrier" in found
    assert not {"signal", "wait"} & set(found)
    assert same == gradients


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("groups", [1, 2])
def test_streams_run_on_thread_blocks(groups: int) -> None:
    model, graph, loss = tagger()
    with vpps.Handle(model, target="simt", vps=2, onchip=vpps.ChipOptions(groups=groups)) as handle:
        value, _ = handle.gradients(graph, loss)
        assert handle.forward(graph, [loss])[0] == np.float32(value)
    with vpps.Handle(model, vps=1) as handle:
        assert handle.gradients(graph, loss)[0] == pytest.approx(value, rel=1e-5)


def test_what_only_the_gradient_of_an_unread_output_reads_does_not_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that gradient, all steps store it in one place: a pause would write it while another pause reads it."""
    monkeypatch.setattr(lazy_batching, "CHUNK_ROWS", 2)
    model = vpps.Model(seed=0)
    table = model.lookup("table", (6, 8), init="normal")

    @vpps.cell
    def cell(v: vpps.Symbol, row: vpps.Symbol) -> tuple[vpps.Symbol, vpps.Symbol]:
        x = vpps.lookup(table, row)
        return vpps.tanh(v + v), vpps.tanh(x) * vpps.tanh(vpps.dot(x, x))

    graph = vpps.Graph()
    x = graph.input(np.linspace(-1.0, 1.0, 8))
    outputs = graph.call(cell, x, 0)
    first = outputs[0]
    for level in range(8):  # no gradient reaches them; different sizes, so that rows are dealt in different ways
        outputs = [graph.call(cell, outputs[level % 2], level % 6) for _ in range(2 + 3 * (level % 3))][-1]
    loss = vpps.dot(first, graph.lookup(table, 1))
    found = []
    for vps in (1, 3):
        with vpps.Handle(model, vps=vps, passes=vpps.Passes(fusion=False), verify=True) as handle:
            value, gradients = handle.gradients(graph, loss)
            found.append((value, gradients["table"].tobytes()))
    assert found[0] == found[1]


def test_outputs_that_nobody_reads_keep_their_memory_until_a_pause_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise inference would free their memory at the end of their stage."""
    monkeypatch.setattr(lazy_batching, "CHUNK_ROWS", 2)
    model = vpps.Model(seed=0)
    table = model.lookup("table", (6, 3), init="normal")
    bias = model.parameter("bias", (3,), init="normal")

    @vpps.cell
    def cell(v: vpps.Symbol, other: vpps.Symbol, row: vpps.Symbol) -> tuple[vpps.Symbol, vpps.Symbol]:
        return vpps.tanh(vpps.lookup(table, row)), vpps.layer_norm(v + bias) * 0.5

    graph = vpps.Graph()
    x = graph.input([-1.0, 0.5, 2.0])
    second = graph.call(cell, graph.call(cell, x, x, 0)[1], x, 0)
    third = graph.call(cell, second[0], x, 0)
    wanted = graph.call(cell, x, third[1], 0)[1]
    for _ in range(3):
        graph.call(cell, x, x, 0)
    found = []
    for vps in (1, 2):
        with vpps.Handle(model, vps=vps, passes=vpps.Passes(fusion=False), verify=True) as handle:
            found.append(handle.forward(graph, [wanted])[0].tobytes())
    assert found[0] == found[1]
