"""Arguments of the wrong kind: every public call refuses them with an error of vpps, or takes them for what they are.

A table has a call of every public function, method and constructor that is right; each of its arguments is replaced in
turn by each member of a zoo. What comes out is never a raw error of Python, NumPy or a compiler.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vpps
from vpps.data import GraphSet, Vocabulary
from vpps.graph.derive import DERIVED
from vpps.ops import Form, Op
from vpps.placement.onchip import DEVICES, MatrixSpec, plan_onchip

pytestmark = pytest.mark.host


class Nothing:
    """Like nothing that vpps knows."""


ZOO: tuple[Any, ...] = (
    None, True, 0, -1, 3, 2**70, 1.5, float("nan"), float("inf"), 1j,
    "", "x", "\0", "\ud800", b"x", (), [], [None], [1, 2], (1, "a"), {}, {"a": 1}, {1: 2}, {1}, range(2), Nothing(),
    Nothing, len,
    np.zeros(0), np.zeros((1, 1, 1, 1)), np.arange(2), np.array(None), np.array([None, 1]), np.array(["a"]),
)  # fmt: skip
FUNCTIONS = ({}, [None], "x", None, 3, Nothing(), np.arange(2))  # a function of the user's may raise what it likes
NAMES = tuple(wrong for wrong in ZOO if isinstance(wrong, str | bytes | int | float | tuple | None))  # may be keys


class World:
    """A model and a graph; `path` is a folder with a checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model = vpps.Model(seed=1)
        self.E = self.model.lookup("words", (10, 8))
        self.W = self.model.parameter("W", (4, 8))
        self.S = self.model.parameter("S", (8, 8))
        self.b = self.model.parameter("b", (4,))
        self.graph = vpps.Graph()
        self.x = self.graph.lookup(self.E, 3)
        self.y = vpps.tanh(self.W @ self.x + self.b)
        self.matrix = self.graph.input(np.ones((8, 8)))
        self.rows = self.graph.rows(np.ones((3, 8)))
        self.loss = vpps.cross_entropy(self.y, 2)
        self.graphs = GraphSet([2, 1], np.array([[-1], [0], [-1]]), columns={"w": np.arange(3)})
        self.handle: vpps.Handle | None = None

    def training(self) -> vpps.Handle:
        """A handle, whose refused calls change nothing: it is used for the next ones, too."""
        if self.handle is None:
            self.handle = vpps.Handle(self.model, vpps.SGD(0.1), target="cpu", vps=1)
        self.handle.gradients(self.graph, self.loss)
        return self.handle


Call = tuple[Callable[..., Any], dict[str, Any]]
Case = tuple[Callable[[World], Call], tuple[Any, ...]]
CASES: dict[str, Case] = {}


def case(name: str, make: Callable[[World], Call], wrong: tuple[Any, ...] = ZOO) -> None:
    assert name not in CASES
    CASES[name] = make, wrong


# ---- functions


def derived(w: World, op: Op) -> Call:
    """The function of a row of the op table, and arguments that do."""
    function = getattr(vpps, op.name)
    right = {"Value": w.matrix if op.form is Form.TRANSPOSE else w.x, "int | Index": 1, "float": 0.1}
    return function, {p.name: right[p.annotation] for p in inspect.signature(function).parameters.values()}


for op in DERIVED.values():
    case(op.name, lambda w, op=op: derived(w, op))
for name in ("max", "min", "softmax", "log_softmax", "logsumexp", "sum", "mean"):
    case(name, lambda w, n=name: (getattr(vpps, n), {"x": w.x}))
    case(f"{name} of a list", lambda w, n=name: (lambda a, b: getattr(vpps, n)([a, b]), {"a": w.x, "b": w.x}))
case("clamp", lambda w: (vpps.clamp, {"x": w.x, "low": 0.0, "high": 1.0}))
case("dropout", lambda w: (vpps.dropout, {"x": w.x, "rate": 0.5}))
case("lookup", lambda w: (lambda table, row: w.graph.call(vpps.lookup, table, row), {"table": w.E, "row": 1}))
case("concat", lambda w: (vpps.concat, {"parts": [w.x, w.y]}))
case("stack", lambda w: (vpps.stack, {"rows": [w.x, w.x]}))
case("norm", lambda w: (vpps.norm, {"x": w.x}))
case("eq", lambda w: (vpps.eq, {"a": w.x, "b": w.x}))
case("where", lambda w: (vpps.where, {"condition": w.x > 0.0, "a": w.x, "b": 0.0}))
case("split", lambda w: (vpps.split, {"x": w.x, "n": 2}))
case("reshape", lambda w: (vpps.reshape, {"x": w.x, "shape": (2, 4)}))
case("bilinear", lambda w: (vpps.bilinear, {"x": w.x, "W": w.S, "y": w.x, "outputs": None}))
case("each", lambda w: (lambda xs, ys: vpps.each(operator.add, xs, ys), {"xs": [w.x], "ys": [w.x]}))
case("each of what", lambda w: (lambda f: vpps.each(f, [w.x]), {"f": vpps.tanh}), FUNCTIONS)


def after(name: str, a: Any, b: Any) -> Any:
    """The operator with the operand of vpps on its left."""
    return getattr(operator, name)(a, b)


def before(name: str, a: Any, b: Any) -> Any:
    """The operator with the operand of vpps on its right, where that has a say."""
    return getattr(operator, name)(a, b) if name not in ("pow", "getitem", "lt") else None


for name in ("add", "sub", "mul", "truediv", "matmul", "pow", "getitem", "lt"):
    for side in ("x", "rows", "S"):
        case(f"{name} of {side}", lambda w, n=name, s=side: (lambda b: after(n, getattr(w, s), b), {"b": 2}))
        case(f"{name} before {side}", lambda w, n=name, s=side: (lambda a: before(n, a, getattr(w, s)), {"a": 2}))
for side in ("x", "matrix", "rows"):
    case(
        f"slice of {side}",
        lambda w, s=side: (lambda a, b, c: getattr(w, s)[a:b:c], {"a": 0, "b": 2, "c": 1}),
    )

# ---- cells


@vpps.cell
def chosen(x: Any, i: Any) -> Any:
    return vpps.pick(x, i)


@vpps.cell
def total(xs: Any, y: Any) -> Any:
    return vpps.sum(xs) + y


@vpps.cell
def scaled(x: Any, *, gain: Any) -> Any:
    return vpps.tanh(x)


@vpps.cell
def chain(h: Any, x: Any) -> Any:
    return vpps.tanh(h + x)


def in_vertex(w: World, body: Callable[[Any], Any], right: Any) -> Call:
    """A call of Cavs's within a vertex function."""

    def call(wrong: Any) -> Any:
        children, inputs = np.array([[-1], [0]]), {"x": np.ones((2, 3))}
        return w.graph.map(vpps.cell(lambda: body(wrong)), children=children, inputs=inputs, state=[(3,)])

    return call, {"wrong": right}


case("cell", lambda w: (vpps.cell, {"function": chosen}), FUNCTIONS[1:3])
case("cell elements", lambda w: (lambda e: vpps.cell(elements=e)(lambda xs: vpps.sum(xs)), {"e": {"xs": (3,)}}))
case(
    "elements of an argument",
    lambda w: (lambda e: w.graph.call(vpps.cell(elements={"xs": e})(lambda xs: vpps.sum(xs)), []), {"e": (3,)}),
)
case("call of a cell", lambda w: (chosen, {"x": w.x, "i": 1}))
case("call of a cell on rows", lambda w: (lambda i: chosen(w.rows, i), {"i": 1}))
case("call of a cell with a list", lambda w: (lambda xs, y: total(xs, y), {"xs": [w.x], "y": w.x}))
case("call of a cell with a list of rows", lambda w: (lambda xs: total(xs, w.rows), {"xs": [w.rows]}))
case("static argument", lambda w: (lambda gain: scaled(w.x, gain=gain), {"gain": 1}))
case("gather", lambda w: in_vertex(w, lambda k: vpps.scatter(vpps.gather(k) + vpps.pull("x")), 0))
case(
    "gather from",
    lambda w: in_vertex(w, lambda start: vpps.scatter(vpps.sum([*vpps.gather(start=start), vpps.pull("x")])), 0),
)
case("pull", lambda w: in_vertex(w, lambda name: vpps.scatter(vpps.gather(0) + vpps.pull(name)), "x"))
case("scatter", lambda w: in_vertex(w, lambda x: vpps.scatter(vpps.gather(0), x), 0))
case("push", lambda w: in_vertex(w, lambda x: vpps.push(vpps.gather(0), x), 0))

# ---- graphs

case("Graph.lookup", lambda w: (w.graph.lookup, {"table": w.E, "row": 1}))
case("Graph.input", lambda w: (w.graph.input, {"array": [1.0], "grad": False}))
case("Graph.zeros", lambda w: (w.graph.zeros, {"n": 3}))
case("Graph.rows", lambda w: (w.graph.rows, {"array": [1.0], "grad": False}))
case("Graph.draw", lambda w: (w.graph.draw, {"calls": None}))
case("Graph.call", lambda w: (lambda f: w.graph.call(f, w.x), {"f": vpps.tanh}), FUNCTIONS)
case("Graph.map of what", lambda w: (lambda cells: w.graph.map(cells, kind=[0]), {"cells": [chain]}))
case(
    "Graph.map",
    lambda w: (
        lambda **given: w.graph.map(chain, **given),
        {
            "kind": np.zeros(3, int),
            "children": np.array([[-1], [0], [1]]),
            "inputs": {"x": np.ones((3, 2))},
            "state": [(2,)],
            "distinct": False,
        },
    ),
)
case(
    "Graph.map in levels",
    lambda w: (
        lambda levels: w.graph.map(chain, None, np.array([[-1], [0]]), {"x": np.ones((2, 2))}, levels=levels),
        {"levels": np.arange(2)},
    ),
)
case(
    "Graph.map of lists",
    lambda w: (
        lambda offsets, rows, y: w.graph.map(total, inputs={"xs": (offsets, rows), "y": y}),
        {"offsets": np.array([0, 0, 3]), "rows": w.rows, "y": np.ones((2, 8))},
    ),
)

# ---- models


def scope(w: World) -> Call:
    def enter(name: Any) -> None:
        with w.model.scope(name):
            pass

    return enter, {"name": "scope"}


case("Model", lambda w: (vpps.Model, {"seed": 1}))
for name, shape in (("parameter", (2,)), ("lookup", (2, 3))):
    case(
        f"Model.{name}",
        lambda w, n=name, s=shape: (getattr(w.model, n), {"name": "new", "shape": s, "trainable": True}),
    )
    case(
        f"init of Model.{name}",
        lambda w, n=name, s=shape: (lambda init: getattr(w.model, n)("new", s, init), {"init": "zeros"}),
        tuple(wrong for wrong in ZOO if not callable(wrong)),
    )
case("initialiser", lambda w: (lambda x: w.model.parameter("new", (2,), lambda rng, shape: x), {"x": [1, 2]}))
for name in ("uniform", "normal", "constant"):
    f = getattr(vpps.init, name)
    case(f"init.{name}", lambda w, f=f: (lambda a: w.model.parameter("new", (2,), f(a)), {"a": 0.1}))
case("Model.scope", scope)
case("Model[]", lambda w: (lambda name: w.model[name], {"name": "W"}))
case("in Model", lambda w: (lambda name: name in w.model, {"name": "W"}))
case(
    "Model.save",
    lambda w: (lambda path, metadata: w.model.save(under(w, path), metadata), {"path": "a", "metadata": {}}),
)
case("Model.restore", lambda w: (w.model.restore, {"path": w.path / "model", "strict": True}))
case("Model.load", lambda w: (vpps.Model.load, {"path": w.path / "model"}))
case("Parameter.assign", lambda w: (w.b.assign, {"value": np.zeros(4)}))
case("Parameter.trainable", lambda w: (lambda value: setattr(w.b, "trainable", value), {"value": True}))


def under(w: World, path: Any) -> Any:
    """A path that a test may write to."""
    return w.path / path if isinstance(path, str) and path else path


# ---- optimizers and options


def checked(rule: type[vpps.Optimizer]) -> Callable[..., None]:
    return lambda **given: rule(**given).check()


for rule in vpps.model.optim.OPTIMIZERS:
    case(rule.__name__, lambda w, r=rule: (checked(r), {f.name: getattr(r(0.1), f.name) for f in fields(r)}))
case("groups", lambda w: (lambda p, v: vpps.SGD(0.1, groups={p: v}).check(), {"p": "W", "v": {"lr": 0.1}}), NAMES)
case("group", lambda w: (lambda p, v: vpps.SGD(0.1, groups={"W": {p: v}}).check(), {"p": "lr", "v": 0.1}), NAMES)
case("schedule of rates", lambda w: (lambda rate: vpps.SGD(lambda update: rate).at(1, "W"), {"rate": 0.1}))
case("Passes", lambda w: (vpps.Passes, {f.name: getattr(vpps.Passes(), f.name) for f in fields(vpps.Passes)}))


def planned(**given: Any) -> object:
    return plan_onchip([MatrixSpec("W", 64, 64)], DEVICES["H200"], 66, vpps.ChipOptions(**given))


OPTIONS = {f.name: getattr(vpps.ChipOptions(), f.name) for f in fields(vpps.ChipOptions)}
case("ChipOptions", lambda w: (planned, OPTIONS))
case("rows per warp", lambda w: (planned, {"ownership": "round-robin", "rpw": 1}))
case("tiers", lambda w: (lambda name, tier: planned(tiers={name: tier}), {"name": "W", "tier": "L2"}), NAMES)
case(
    "specialize",
    lambda w: (
        lambda **given: vpps.specialize(w.model, vps=given.pop("vps", 10**6), **given),  # so that nothing is compiled
        {
            "target": "cuda", "arch": "sm_90", "sms": None, "groups": 1, "device": None, "vps": 10**6,
            "optimizer": None, "clip_norm": None, "train": True, "schedule": "vector", "passes": None, **OPTIONS,
        },
    ),
)  # fmt: skip
case(
    "specialize what", lambda w: (lambda m, e: vpps.specialize(m, e, vps=10**6), {"m": w.model, "e": (w.graph, w.loss)})
)

case("learn_policy", lambda w: (vpps.learn_policy, {"graphs": w.graph, "encoding": "max", "trials": 3, "seed": 1}))

# ---- handles

HANDLE = {
    "optimizer": None, "policy": None, "schedule": None, "train": True, "clip_norm": None, "ema": None,
    "on_nonfinite": "warn", "pool_limit": None, "verify": None, "timeline": False, "onchip": None, "passes": None,
    "autotune": False, "example": None,
}  # fmt: skip


def handle(model: Any, **given: Any) -> None:
    vpps.Handle(model, **{"target": "cpu", "vps": 1} | given).close()


def attribute(w: World, name: str, right: Any) -> Call:
    return (lambda value: setattr(w.training(), name, value)), {"value": right}


def traced(w: World) -> Call:
    opened = w.training()

    def trace(path: Any) -> None:
        with opened.trace(under(w, path)):
            opened.fb(w.graph, w.loss)

    return trace, {"path": "trace.json"}


case("Handle", lambda w: (handle, {"model": w.model, **HANDLE}))
case("Handle's processors", lambda w: (lambda **given: handle(w.model, **given), {"vps": 1}), ZOO)
case("Handle's target", lambda w: (lambda **given: handle(w.model, **given), {"target": "cpu"}))
for name, flag in (("fb", "accumulate"), ("gradients", "train"), ("disassemble", ""), ("inspect", "")):
    case(
        f"Handle.{name}",
        lambda w, n=name, f=flag: (
            getattr(w.training(), n),
            {"graph": w.graph, "loss": w.loss, **({f: False} if f else {})},
        ),
    )
case("Handle.forward", lambda w: (w.training().forward, {"graph": w.graph, "wanted": [w.y]}))
for name in ("value", "input_gradient", "device_value"):
    case(f"Handle.{name}", lambda w, n=name: (getattr(w.training(), n), {"expression": w.loss}))
case("Handle.clip_norm", lambda w: attribute(w, "clip_norm", 1.0))
case("Handle.optimizer", lambda w: attribute(w, "optimizer", vpps.SGD(0.2)))
case("Handle.trace", traced)

# ---- graphs as data

case(
    "GraphSet",
    lambda w: (
        GraphSet,
        {
            "sizes": [2, 1],
            "children": np.array([[-1], [0], [-1]]),
            "kind": [0, 0, 0],
            "kinds": ("a",),
            "columns": {"w": np.arange(3)},
            "graph_columns": {"y": [0, 1]},
            "vocabularies": {"w": Vocabulary(["<unk>", "a", "b"])},
            "classes": {"y": ("a", "b")},
            "sources": None,
        },
    ),
)
case("lists of children", lambda w: (lambda o, i: GraphSet([2], (o, i)), {"o": [0, 0, 1], "i": [0]}))
case(
    "columns",
    lambda w: (
        lambda name, column, words, kind: GraphSet(
            [1], [[-1]], columns={name: column}, classes={name: words}, kinds=(kind,)
        ),
        {"name": "w", "column": [0], "words": ("x",), "kind": "k"},
    ),
    NAMES,
)
case(
    "vocabulary",
    lambda w: (
        lambda words: GraphSet([1], [[-1]], columns={"w": [0]}, vocabularies={"w": words}),
        {"words": Vocabulary(["<unk>"])},
    ),
)
case("GraphSet.save", lambda w: (lambda path: w.graphs.save(under(w, path)), {"path": "graphs"}))
case("GraphSet.load", lambda w: (GraphSet.load, {"path": w.path / "set", "verify": True}))
case("GraphSet[]", lambda w: (lambda graphs: w.graphs[graphs], {"graphs": 0}))
case("GraphSet.subset", lambda w: (w.graphs.subset, {"graphs": [0]}))
case("GraphSet.split", lambda w: (w.graphs.split, {"fraction": 0.5, "seed": None}))
case(
    "GraphSet.batches",
    lambda w: (
        lambda **given: list(w.graphs.batches(**given)),
        {"size": 1, "seed": 1, "epoch": 0, "shuffle": True, "bucket": None, "drop_last": False},
    ),
)
case("GraphBatch[]", lambda w: (lambda column: w.graphs[:][column], {"column": "w"}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kinds")
    world = World(path)
    world.model.save(path / "model")
    world.graphs.save(path / "set")
    return path


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_arguments_of_the_wrong_kind_are_refused_by_an_error_of_vpps(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    make, zoo = CASES[name]
    raw = []
    for argument in make(World(folder))[1]:
        world = World(folder)
        for wrong in zoo:
            if world.handle is None:
                world = World(folder)
            call, arguments = make(world)
            try:
                call(**{**arguments, argument: wrong})
            except vpps.VppsError:
                pass
            except Exception as error:
                raw.append(f"{argument}={wrong!r}: {type(error).__name__}: {error}")
        if world.handle is not None:
            world.handle.close()
    assert not raw, "\n".join(raw)


def test_every_public_function_is_in_the_table() -> None:
    said = {name.split()[0] for name in CASES}
    classes = (type, type(Any))
    missing = {
        name for name in vpps.__all__ if callable(found := getattr(vpps, name)) and not isinstance(found, classes)
    } - said
    assert not missing
    for kind in (vpps.Graph, vpps.Model, vpps.Handle, GraphSet):
        assert any(name.startswith(kind.__name__) for name in said)


def test_a_cell_that_calls_itself_is_told_so() -> None:
    @vpps.cell
    def again(x: Any) -> Any:
        return again(x) + 1

    graph = vpps.Graph()
    with pytest.raises(vpps.TraceError, match="cell 'again' calls itself without end"):
        again(graph.input([1.0]))
    with pytest.raises(vpps.TraceError, match="cell 'again' calls itself without end"):
        graph.map(again, inputs={"x": np.ones((2, 3))})
    assert len(graph) == 1


def test_a_model_without_parameters_has_nothing_to_learn() -> None:
    graph = vpps.Graph()
    loss = vpps.sum(graph.input([1.0, 2.0]))
    with vpps.Handle(vpps.Model(), target="cpu") as opened:
        for call in (opened.fb, opened.gradients):
            with pytest.raises(vpps.GraphError, match="depends on no trainable parameter"):
                call(graph, loss)
        assert opened.forward(graph, [loss])[0] == 3
