"""Updates at the end of a launch equal each optimizer's NumPy reference, for any number of virtual processors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

import vpps
from tests.comparison import VP_COUNTS, relative_error
from tests.training import ReferenceTraining
from vpps.model import optim
from vpps.model.optim import Optimizer
from vpps.script.disassemble import entry_points, instructions

pytestmark = pytest.mark.cpu

OPTIMIZERS: dict[str, Callable[[], Optimizer]] = {
    "sgd": lambda: vpps.SGD(lr=0.002),
    "sgd-decay": lambda: vpps.SGD(lr=0.002, weight_decay=0.5),
    "momentum": lambda: vpps.Momentum(lr=0.001, momentum=0.8),
    "momentum-decay": lambda: vpps.Momentum(lr=0.001, momentum=0.8, weight_decay=0.5),
    "nesterov": lambda: vpps.Nesterov(lr=0.001, momentum=0.8, weight_decay=0.5),
    "adamw": lambda: vpps.AdamW(lr=0.02, weight_decay=0.3),
    "adagrad": lambda: vpps.Adagrad(lr=0.02, weight_decay=0.05),
    "rmsprop": lambda: vpps.RMSprop(lr=0.005, rho=0.9, eps=1e-3, weight_decay=0.05),
    "adam": lambda: vpps.Adam(lr=0.02),
    "adam-decay": lambda: vpps.Adam(lr=0.02, beta1=0.8, beta2=0.95, weight_decay=0.05),
}
STEPS = 5
DECAY = 0.7  # after few steps, averages differ from both the weights and the initial averages


def make_model() -> vpps.Model:
    model = vpps.Model(seed=4)
    model.lookup("E", (10, 40), init="normal")
    model.parameter("W", (70, 80))
    model.parameter("b", (70,), init="normal")
    model.parameter("v", (70,))
    model.parameter("unused", (33, 5))
    model.parameter("frozen", (70,), init="ones", trainable=False)
    return model


def make_batch(model: vpps.Model, step: int) -> tuple[vpps.Graph, vpps.Expression]:
    """Use different rows of the table at every step, and some rows twice."""
    E, W, b, v, frozen = (model[n] for n in ("E", "W", "b", "v", "frozen"))
    assert isinstance(E, vpps.Lookup)
    graph = vpps.Graph()
    losses = []
    for i in range(6):
        x = vpps.concat([graph.lookup(E, (step + i) % 4), graph.lookup(E, (2 * step + i) % 9)])
        y = vpps.tanh(W @ x + b) * frozen
        losses.append(vpps.square(vpps.dot(y, graph.input(np.cos(np.arange(70) + step))) - 1.0) + vpps.dot(v, y))
    return graph, vpps.sum(losses)


@pytest.mark.parametrize(
    "name, clip_norm", [*((name, bound) for name in OPTIMIZERS for bound in (None, 0.5)), ("sgd", 1e6), ("adam", 1e6)]
)
def test_updates_follow_the_reference(name: str, clip_norm: float | None) -> None:
    """Also covers averages, which do not change the weights."""
    reference = ReferenceTraining(make_model(), OPTIMIZERS[name](), clip_norm, DECAY)
    expected_losses = [reference.fb(*make_batch(reference.model, s)) for s in range(1, STEPS + 1)]
    first: tuple[list[float], dict[str, NDArray[np.float32]]] | None = None
    for vps in VP_COUNTS:
        model, losses, ema = make_model(), [], None if vps == VP_COUNTS[0] else DECAY
        with vpps.Handle(model, OPTIMIZERS[name](), vps=vps, clip_norm=clip_norm, ema=ema) as handle:
            for step in range(1, STEPS + 1):
                handle.fb(*make_batch(model, step))
                losses.append(handle.sync_get_latest_loss())
        np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)
        weights = model.numpy()
        for k, w in weights.items():
            assert relative_error(w, reference.weights[k]) <= 1e-5, k
            assert ema is None or relative_error(model[k].average(), reference.averages[k]) < 1e-5, k
        if first is None:
            first = losses, weights
        assert losses == first[0], f"losses differ with {vps} VPs"
        for k, w in weights.items():
            assert np.array_equal(first[1][k], w), f"{k} differs with {vps} VPs"


TARGETS = [pytest.param("cpu", marks=pytest.mark.cpu), pytest.param("simt", marks=pytest.mark.simt)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("path", ["fb", "apply", "accumulate", "halves", "kept", "shards", "unfused", "paper"])
@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("ema", [None, 0.5])
def test_parameters_that_the_loss_does_not_touch_stay(
    path: str, clip_norm: float | None, ema: float | None, target: str
) -> None:
    """Such parameters do not change, as with None gradients in PyTorch, even inside a stack; a zero gradient counts."""
    model = vpps.Model(seed=1)
    A, B, V = model.parameter("A", (32, 3)), model.parameter("B", (32, 3)), model.parameter("V", (4, 4))
    W, z = model.parameter("W", (3, 3)), model.parameter("z", (3,), init="normal")

    @vpps.cell
    def heads(x):
        return vpps.tanh(A @ x), vpps.tanh(B @ x)

    def batch(touched: str = "ABVWz") -> tuple[vpps.Graph, vpps.Expression]:
        graph = vpps.Graph()
        x = graph.input([1.0, 2, 3])
        a, b = heads(x)
        terms = {"A": a, "B": b, "V": V @ graph.input([1.0, 2, 3, 4]), "W": vpps.tanh(W @ x), "z": z * graph.zeros(3)}
        return graph, vpps.sum([vpps.dot(terms[name], terms[name]) for name in touched])

    def state() -> dict[str, bytes]:
        weights = model.numpy()
        assert model.optimizer_state is not None
        moments = model.optimizer_state.moments["m"]
        return {p: weights[p].tobytes() + moments[p].tobytes() for p in weights}

    rule, options = (
        vpps.AdamW(lr=0.1, weight_decay=0.1),
        {"target": target, "vps": 2, "clip_norm": clip_norm, "ema": ema},
    )
    options |= {"schedule": "paper"} if path == "paper" else {}
    options |= {"passes": vpps.Passes(fusion=False)} if path == "unfused" else {}
    options |= {"world": vpps.distributed.init("alone", shards=2)} if path == "shards" else {}
    with vpps.Handle(model, rule, **options) as handle:
        for _ in range(1 + (path == "shards")):
            handle.fb(*batch())
        before = state()
        averages = {name: p.average() for name, p in (("B", B), ("V", V))} if ema is not None else {}
        graph, loss = batch("AWz")
        if path == "apply":
            gradients = handle.gradients(graph, loss)[1]
            assert sorted(gradients) == ["A", "W", "z"]
            handle.close()
            with vpps.Handle(model, rule, **options) as fresh:  # no cell has been seen yet
                fresh.apply(gradients)
        elif path in ("halves", "kept"):
            handle.forward(graph, [loss], train=True, keep=True, update=path == "halves")
            found = handle.backward([1.0])
            if path == "kept":
                handle.apply(found)
        elif path in ("accumulate", "shards"):
            handle.fb(*batch("Az"), accumulate=path == "accumulate")
            handle.fb(*batch("W"))
        else:
            handle.fb(graph, loss)
        after = state()
        counts = model.optimizer_state.counts
    assert [p for p in after if after[p] != before[p]] == ["A", "W", "z"]
    assert counts == {"A": 2, "B": 1, "V": 1, "W": 2, "z": 2}
    for name, average in averages.items():  # averages advance
        np.testing.assert_allclose(model[name].average(), 0.5 * average + 0.5 * model[name].numpy(), rtol=1e-6)


def test_bias_correction_counts_from_when_the_moments_began() -> None:
    """Adam after another optimizer must not treat its first moments as if they came from a thousand steps."""
    model = make_model()
    with vpps.Handle(model, vpps.SGD(lr=1e-4)) as handle:
        for step in range(20):
            handle.fb(*make_batch(model, step))
    before = model["v"].numpy()
    with vpps.Handle(model, vpps.Adam(lr=0.01)) as handle:
        handle.fb(*make_batch(model, 20))
    np.testing.assert_allclose(np.abs(model["v"].numpy() - before), 0.01, rtol=1e-3)  # Adam's first step is lr


def test_a_schedule_gives_the_rate_of_each_update() -> None:
    model, twin = make_model(), make_model()
    rates = [0.004, 0.0, 0.001]
    seen: list[int] = []

    def schedule(update: int) -> float:
        seen.append(update)
        return rates[update - 1]

    constant = vpps.Momentum(lr=0.0)
    with vpps.Handle(model, vpps.Momentum(lr=schedule)) as handle, vpps.Handle(twin, constant) as other:
        for step, rate in enumerate(rates, 1):
            handle.fb(*make_batch(model, step))
            constant.lr = rate
            other.fb(*make_batch(twin, step))
    assert seen == [1, 2, 3]  # once per update: a schedule may have its own state
    for name, w in model.numpy().items():
        np.testing.assert_array_equal(w, twin[name].numpy(), name)


def test_groups_have_hyper_parameters_of_their_own() -> None:
    model = make_model()
    before = model.numpy()
    optimizer = vpps.SGD(
        lr=0.002, groups={"E": {"lr": 0.0}, "unus*": {"weight_decay": 0.5, "lr": lambda update: 0.1}, "*": {}}
    )
    with vpps.Handle(model, optimizer, vps=2) as handle:
        handle.fb(*make_batch(model, 1))
    after = model.numpy()
    np.testing.assert_array_equal(after["E"], before["E"])
    assert np.array_equal(after["unused"], before["unused"])  # no path from the loss leads to it: no decay
    assert not np.array_equal(after["W"], before["W"])


@pytest.mark.parametrize("shape", [(33, 70), (64, 128), (5, 3), (96, 17)])
@pytest.mark.parametrize("rule", optim.OPTIMIZERS, ids=lambda rule: rule.name)
def test_a_step_made_with_the_last_outer_product_gives_the_bits_of_one_made_apart(
    rule: Callable[..., Optimizer], shape: tuple[int, int]
) -> None:
    columns = shape[1]
    results = []
    for bound in (None, 1e30):  # clipping needs all gradients before any step; this bound changes nothing else
        for count in (1, 3):
            model = vpps.Model(seed=2)
            W = model.parameter("W", shape)
            table = model.lookup("x", (150, columns))

            @vpps.cell
            def squash(x: vpps.Expression, W: vpps.Parameter = W) -> vpps.Expression:
                return vpps.tanh(W @ x)

            with vpps.Handle(model, rule(lr=0.01), vps=count, clip_norm=bound) as handle:
                for step in range(3):
                    graph = vpps.Graph()
                    xs = [graph.lookup(table, (7 * i + step) % 150) for i in range(140)]  # more than one pass of rows
                    ys = [squash(x) for x in xs] + [W @ x for x in xs[:3]]  # two contributions
                    handle.fb(graph, vpps.mean([vpps.sum(vpps.square(y)) for y in ys]))
                assert handle._engine.plan is not None
                script = handle._engine.plan.script
                names = {d.instruction.name for d in instructions(script, entry_points(script)[0])}
                fused = {f"{name}.{handle.optimizer.name}" for name in ("outer_update", "step_tiles")}
                assert bool(fused & names) == (bound is None)
            results.append(model.numpy())
    for other in results[1:]:
        for name, w in results[0].items():
            assert np.array_equal(w, other[name]), name
