"""Arguments of the wrong kind: every public call refuses them with a vpps error, or accepts what they mean.

A table has a correct call of every public function, method and constructor. Each keyword argument is replaced in turn
by each member of a zoo. The result is never a raw error from Python, NumPy or a compiler.
"""

from __future__ import annotations

import ast
import inspect
import operator
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vpps
import vpps.data
from vpps.data import GraphSet
from vpps.graph.derive import DERIVED
from vpps.ops import Form, Op
from vpps.placement.onchip import DEVICES, MatrixSpec, plan_onchip

pytestmark = pytest.mark.host


class Unknown:
    """An object of a kind that vpps never accepts."""


ZOO: tuple[Any, ...] = (
    None, True, 0, -1, 3, 2**70, 1.5, float("nan"), float("inf"), 1j,
    "", "x", "\0", "\ud800", b"x", (), [], [None], [1, 2], (1, "a"), {}, {"a": 1}, {1: 2}, {1}, range(2), Unknown(),
    Unknown, len,
    np.zeros(0), np.zeros((1, 1, 1, 1)), np.arange(2), np.array(None), np.array([None, 1]), np.array(["a"]),
)  # fmt: skip
FUNCTIONS = ({}, [None], "x", None, 3, Unknown(), np.arange(2))  # a user's function can raise anything
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

    def names(self) -> dict[str, Any]:
        """Return the names that the table's calls use."""
        own = {f.__name__: f for f in (self.training, self.under, self.in_vertex, self.specialize, self.trace)}
        return {**globals(), **vars(self), **own, "Vocabulary": vpps.data.Vocabulary}

    def training(self) -> vpps.Handle:
        """Return a handle; refused calls change nothing, so later calls also use it."""
        if self.handle is None:
            self.handle = vpps.Handle(self.model, vpps.SGD(0.1), target="cpu", vps=1)
        self.handle.gradients(self.graph, self.loss)
        return self.handle

    def under(self, path: Any) -> Any:
        """Return a path that a test may write to."""
        return self.path / path if isinstance(path, str) and path else path

    def in_vertex(self, body: Callable[[], Any]) -> Any:
        """Make one of Cavs's calls within a vertex function."""
        children, inputs = np.array([[-1], [0]]), {"x": np.ones((2, 3))}
        return self.graph.map(vpps.cell(lambda: body()), children=children, inputs=inputs, state=[(3,)])

    def specialize(self, vps: Any = 10**6, **given: Any) -> Any:
        """Specialize for so many virtual processors that nothing is compiled."""
        return vpps.specialize(self.model, vps=vps, **given)

    def trace(self, path: Any) -> None:
        opened = self.training()
        with opened.trace(self.under(path)):
            opened.fb(self.graph, self.loss)


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


def before(name: str, a: Any, b: Any) -> Any:
    """Apply the operator with vpps's operand on its right, if that operand can handle it."""
    return getattr(operator, name)(a, b) if name not in ("pow", "getitem", "lt") else None


def checked(rule: type[vpps.Optimizer], **given: Any) -> None:
    rule(**given).check()


def planned(**given: Any) -> object:
    return plan_onchip([MatrixSpec("W", 64, 64)], DEVICES["H200"], 66, vpps.ChipOptions(**given))


def opened(model: Any, **given: Any) -> None:
    vpps.Handle(model, **{"target": "cpu", "vps": 1} | given).close()


def enter(scope: Any) -> None:
    with scope:
        pass


def defaults(kind: Any) -> str:
    """Return the fields of a dataclass, as keyword arguments."""
    made = kind(0.1) if issubclass(kind, vpps.Optimizer) else kind()
    return ", ".join(f"{f.name}={getattr(made, f.name)!r}" for f in fields(kind))


def derived(op: Op) -> str:
    """Return a call of the function for a row of the op table."""
    right = {"Value": "matrix" if op.form is Form.TRANSPOSE else "x", "int | Index": "1", "float": "0.1"}
    parameters = inspect.signature(getattr(vpps, op.name)).parameters.values()
    return f"vpps.{op.name}({', '.join(f'{p.name}={right[p.annotation]}' for p in parameters)})"


HANDLE = (
    "optimizer=None, policy=None, schedule=None, train=True, clip_norm=None, ema=None, on_nonfinite='warn', "
    "pool_limit=None, verify=None, timeline=False, onchip=None, passes=None, autotune=False, example=None"
)
SIDES, OPERATORS = ("x", "rows", "S"), ("add", "sub", "mul", "truediv", "matmul", "pow", "getitem", "lt")
GENERATED = [
    *map(derived, DERIVED.values()),
    *(f"vpps.{n}(x=x)" for n in ("max", "min", "softmax", "log_softmax", "logsumexp", "sum", "mean")),
    *(
        f"(lambda a, b: vpps.{n}([a, b]))(a=x, b=x)"
        for n in ("max", "min", "softmax", "log_softmax", "logsumexp", "sum", "mean")
    ),
    *(f"(lambda b: operator.{n}({side}, b))(b=2)" for n in OPERATORS for side in SIDES),
    *(f"(lambda a: before({n!r}, a, {side}))(a=2)" for n in OPERATORS for side in SIDES),
    *(f"(lambda a, b, c: {side}[a:b:c])(a=0, b=2, c=1)" for side in ("x", "matrix", "rows")),
    *(f"checked(vpps.{rule.__name__}, {defaults(rule)})" for rule in vpps.model.optim.OPTIMIZERS),
    f"vpps.Passes({defaults(vpps.Passes)})",
    f"planned({defaults(vpps.ChipOptions)})",
    f"specialize(target='cuda', arch='sm_90', sms=None, device=None, vps=10**6, optimizer=None, clip_norm=None, "
    f"train=True, schedule='vector', passes=None, {defaults(vpps.ChipOptions)})",
    f"opened(model=model, {HANDLE})",
]

TABLE = """
vpps.clamp(x=x, low=0.0, high=1.0)
vpps.dropout(x=x, rate=0.5)
graph.call(vpps.lookup, table=E, row=1)
(lambda table, row: graph.call(vpps.lookup, table, row))(table=E, row=1)
vpps.concat(parts=[x, y])
vpps.stack(rows=[x, x])
vpps.norm(x=x)
vpps.eq(a=x, b=x)
vpps.where(condition=x > 0.0, a=x, b=0.0)
vpps.split(x=x, n=2)
vpps.reshape(x=x, shape=(2, 4))
vpps.bilinear(x=x, W=S, y=x, outputs=None)
(lambda xs, ys: vpps.each(operator.add, xs, ys))(xs=[x], ys=[x])

(lambda e: vpps.cell(elements=e)(lambda xs: vpps.sum(xs)))(e={'xs': (3,)})
(lambda e: graph.call(vpps.cell(elements={'xs': e})(lambda xs: vpps.sum(xs)), []))(e=(3,))
(lambda x, i: chosen(x, i))(x=x, i=1)
(lambda i: chosen(rows, i))(i=1)
(lambda xs, y: total(xs, y))(xs=[x], y=x)
(lambda xs: total(xs, rows))(xs=[rows])
(lambda gain: scaled(x, gain=gain))(gain=1)
(lambda k: in_vertex(lambda: vpps.scatter(vpps.gather(k) + vpps.pull('x'))))(k=0)
(lambda k: in_vertex(lambda: vpps.scatter(vpps.sum([*vpps.gather(start=k), vpps.pull('x')]))))(k=0)
(lambda name: in_vertex(lambda: vpps.scatter(vpps.gather(0) + vpps.pull(name))))(name='x')
(lambda x: in_vertex(lambda: vpps.scatter(vpps.gather(0), x)))(x=0)
(lambda x: in_vertex(lambda: vpps.push(vpps.gather(0), x)))(x=0)

graph.lookup(table=E, row=1)
graph.input(array=[1.0], grad=False)
graph.zeros(n=3)
graph.rows(array=[1.0], grad=False)
graph.draw(calls=None)
graph.map(kind=[0], cells=[chain])
graph.map(chain, kind=np.zeros(3, int), children=np.array([[-1], [0], [1]]), inputs={'x': np.ones((3, 2))}, \
state=[(2,)], distinct=False)
graph.map(chain, None, np.array([[-1], [0]]), {'x': np.ones((2, 2))}, levels=np.arange(2))
(lambda o, r, y: graph.map(total, inputs={'xs': (o, r), 'y': y}))(o=np.array([0, 0, 3]), r=rows, y=np.ones((2, 8)))

vpps.Model(seed=1)
model.parameter(name='new', shape=(2,), trainable=True)
model.lookup(name='new', shape=(2, 3), trainable=True)
(lambda x: model.parameter('new', (2,), lambda rng, shape: x))(x=[1, 2])
(lambda a: model.parameter('new', (2,), vpps.init.uniform(a)))(a=0.1)
(lambda a: model.parameter('new', (2,), vpps.init.normal(a)))(a=0.1)
(lambda a: model.parameter('new', (2,), vpps.init.constant(a)))(a=0.1)
(lambda name: enter(model.scope(name)))(name='scope')
(lambda name: model[name])(name='W')
(lambda name: name in model)(name='W')
(lambda path, metadata: model.save(under(path), metadata))(path='a', metadata={})
model.restore(path=path / 'model', strict=True)
vpps.Model.load(path=path / 'model')
b.assign(value=np.zeros(4))
(lambda value: setattr(b, 'trainable', value))(value=True)

(lambda rate: vpps.SGD(lambda update: rate).at(1, 'W'))(rate=0.1)
planned(ownership='round-robin', rpw=1)
(lambda m, e: vpps.specialize(m, e, vps=10**6))(m=model, e=(graph, loss))
vpps.learn_policy(graphs=graph, encoding='max', trials=3, seed=1)
(lambda network, path: vpps.export_onnx(network, under(path)))(network=[E, vpps.tanh], path='a.onnx')

opened(model, vps=1)
opened(model, target='cpu')
training().fb(graph=graph, loss=loss, accumulate=False)
training().gradients(graph=graph, loss=loss, train=False)
training().disassemble(graph=graph, loss=loss)
training().inspect(graph=graph, loss=loss)
training().forward(graph=graph, wanted=[y])
training().value(expression=loss)
training().input_gradient(expression=loss)
training().device_value(expression=loss)
(lambda value: setattr(training(), 'clip_norm', value))(value=1.0)
(lambda value: setattr(training(), 'optimizer', value))(value=vpps.SGD(0.2))
trace(path='trace.json')

GraphSet(sizes=[2, 1], children=np.array([[-1], [0], [-1]]), kind=[0, 0, 0], kinds=('a',), \
columns={'w': np.arange(3)}, graph_columns={'y': [0, 1]}, vocabularies={'w': Vocabulary(['<unk>', 'a', 'b'])}, \
classes={'y': ('a', 'b')}, sources=None)
(lambda o, i: GraphSet([2], (o, i)))(o=[0, 0, 1], i=[0])
(lambda words: GraphSet([1], [[-1]], columns={'w': [0]}, vocabularies={'w': words}))(words=Vocabulary(['<unk>']))
(lambda path: graphs.save(under(path)))(path='graphs')
GraphSet.load(path=path / 'set', verify=True)
(lambda k: graphs[k])(k=0)
graphs.subset(graphs=[0])
graphs.split(fraction=0.5, seed=None)
(lambda **given: list(graphs.batches(**given)))(size=1, seed=1, epoch=0, shuffle=True, bucket=None, drop_last=False)
(lambda column: graphs[:][column])(column='w')
"""
OF_FUNCTIONS = """
(lambda f: vpps.each(f, [x]))(f=vpps.tanh)
(lambda f: graph.call(f, x))(f=vpps.tanh)
"""
OF_NAMES = """
(lambda p, v: vpps.SGD(0.1, groups={p: v}).check())(p='W', v={'lr': 0.1})
(lambda p, v: vpps.SGD(0.1, groups={'W': {p: v}}).check())(p='lr', v=0.1)
(lambda name, tier: planned(tiers={name: tier}))(name='W', tier='L2')
(lambda name, column, words, kind: GraphSet([1], [[-1]], columns={name: column}, classes={name: words}, kinds=(kind,)))\
(name='w', column=[0], words=('x',), kind='k')
"""
OF_INITIALISERS = """
(lambda init: model.parameter('new', (2,), init))(init='zeros')
(lambda init: model.lookup('new', (2, 3), init))(init='zeros')
"""


def calls(table: str) -> list[str]:
    return [line for line in table.replace("\\\n", "").splitlines() if line]


CASES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys([*GENERATED, *calls(TABLE)], ZOO),
    **dict.fromkeys(calls(OF_FUNCTIONS), FUNCTIONS),
    "vpps.cell(function=chosen)": FUNCTIONS[1:3],
    **dict.fromkeys(calls(OF_NAMES), NAMES),
    **dict.fromkeys(calls(OF_INITIALISERS), tuple(wrong for wrong in ZOO if not callable(wrong))),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kinds")
    world = World(path)
    world.model.save(path / "model")
    world.graphs.save(path / "set")
    return path


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("text", CASES)
def test_arguments_of_the_wrong_kind_are_refused_by_an_error_of_vpps(
    text: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    given = {k.arg: ast.unparse(k.value) for k in call.keywords if k.arg}
    raw = []
    for argument in given:
        world = World(folder)
        wrong_call = text_of(call, {**given, argument: "wrong"})
        for wrong in CASES[text]:
            if world.handle is None:
                world = World(folder)
            try:
                eval(wrong_call, {**world.names(), "wrong": wrong})
            except vpps.VppsError:
                pass
            except Exception as error:
                raw.append(f"{argument}={wrong!r}: {type(error).__name__}: {error}")
        if world.handle is not None:
            world.handle.close()
    assert given
    assert not raw, "\n".join(raw)


def text_of(call: ast.Call, keywords: dict[str, str]) -> str:
    positional = [ast.unparse(a) for a in call.args]
    return f"({ast.unparse(call.func)})({', '.join([*positional, *(f'{k}={v}' for k, v in keywords.items())])})"


def test_every_public_function_is_in_the_table() -> None:
    said = set(re.findall(r"vpps\.(\w+)", "\n".join(CASES)))
    classes = (type, type(Any))
    missing = {
        name for name in vpps.__all__ if callable(found := getattr(vpps, name)) and not isinstance(found, classes)
    } - said
    assert not missing
