"""Names that users try first, from PyTorch and DyNet, give hints to vpps's names."""

from __future__ import annotations

import inspect
import itertools
import re
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vpps
import vpps.data
from vpps import habits, hints
from vpps.hints import ARGUMENTS, HINTS, VALUES, hinted
from vpps.nn import Linear

pytestmark = pytest.mark.host


def owners() -> dict[str, object]:
    """Return one object per class."""
    model = vpps.Model()
    layer = Linear(model, 2, 3)
    graph = vpps.Graph()
    return {
        "vpps": vpps,
        "vpps.nn": vpps.nn,
        "Model": model,
        "Parameter": layer.W,
        "Layer": layer,
        "Expression": graph.zeros(2),
        "Rows": graph.rows(np.ones((3, 2))),
        "Optimizer": vpps.Adam(0.1),
        "Adam": vpps.AdamW(0.1),
        "Graph": graph,
        "Handle": object.__new__(vpps.Handle),  # without threads; there is nothing to close
    }


@pytest.mark.parametrize("owner", sorted({owner for owner, _ in HINTS}))
def test_habits_of_other_libraries_get_a_hint_and_raise_nothing_else(owner: str) -> None:
    there = owners()
    for kind, name in HINTS:
        if kind == owner:
            with pytest.raises(AttributeError, match=re.escape(f"no attribute {name!r}; {HINTS[kind, name]}")):
                getattr(there[owner], name)
            assert not hasattr(there[owner], name)
            assert name not in dir(there[owner])


def test_what_hints_name_exists() -> None:
    there = owners()
    there |= {"graph": vpps.Graph(), "handle": vpps.Handle, "model": there["Model"], "p": there["Parameter"]}
    there |= {"x": vpps.Expression, "layer": there["Layer"], "lstm": vpps.nn.LSTM, "optimizer": there["Optimizer"]}
    for hint in {*HINTS.values(), *ARGUMENTS.values(), *VALUES.values()}:
        for owner, path in re.findall(r"\b(vpps|graph|handle|model|p|x|layer|lstm|optimizer)((?:\.\w+)+)", hint):
            found = there[owner]
            for name in path.split(".")[1:]:
                assert isinstance(found, property) or hasattr(found, name), hint
                found = getattr(found, name, found)


def test_a_name_has_one_hint() -> None:
    for table in (habits.NAMES + "\n[vpps vpps.nn Expression]" + hints.FORMULAS, habits.ARGUMENTS, habits.OPTIONS):
        keys: list[tuple[str, str]] = []
        for block in re.split(r"^\[", table, flags=re.MULTILINE)[1:]:
            owners, _, lines = block.partition("]")
            names = [name for line in lines.strip().splitlines() for name in line.partition(": ")[0].split()]
            keys += itertools.product(owners.split(), names)
        assert [key for key, n in Counter(keys).items() if n > 1] == []


def logistic(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


X, Y = np.array([-1.7, 0.3, 0.9, 6.4]), np.array([0.6, 0.2, 1.1, 0.7])
A, B = np.arange(12.0).reshape(4, 3) / 7 - 0.6, np.arange(12.0)[::-1].reshape(4, 3) / 5 + 0.1
I = 2


def softmax(x: Any) -> Any:
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


def huber(d: Any) -> Any:
    return np.where(d < 1, d * d / 2, d - 0.5).mean()


def cross_entropy(x: Any) -> Any:
    return -np.log(softmax(x)[I])


# The formula in NumPy, by one of its names.
TRUTH: dict[str, Callable[..., Any]] = {
    name: eval(f"lambda x, y: {formula}", globals())
    for name, formula in (line.split(": ", 1) for line in re.split(r";\s+", """
logistic: logistic(x); rectify: np.maximum(x, 0); swish: x * logistic(x); cmult: x * y; cdiv: x / y; add: x + y;
sub: x - y; neg: -x; not_equal: 1.0 * (x != y); logical_and: x * y; logical_or: np.maximum(x, y);
logical_not: 1.0 * (x == 0); sign: np.sign(x); esum: x + y; average: (x + y) / 2; emax: np.maximum(x, y);
bmax: np.maximum(x, y); bmin: np.minimum(x, y); sum_elems: x.sum(); mean_elems: x.mean(); reduce_max: x.max();
reduce_min: x.min(); sum_dim: A.sum(axis=0); mean_dim: A.mean(axis=0); max_dim: A.max(axis=0); min_dim: A.min(axis=0);
var: x.var(); std: x.std(); squared_norm: x @ x; l2_norm: np.linalg.norm(x); normalize: x / np.linalg.norm(x);
dot_product: x @ y; trace_of_product: (A * B).sum(); l1_distance: abs(x - y).sum(); dist: np.linalg.norm(x - y);
cosine_similarity: x @ y / np.linalg.norm(x) / np.linalg.norm(y); mse_loss: ((x - y) ** 2).mean();
l1_loss: abs(x - y).mean(); huber_loss: huber(abs(x - y)); poisson_loss: (np.exp(x) - y * x).mean();
binary_log_loss: -(y * np.log(logistic(x)) + (1 - y) * np.log(1 - logistic(x))).mean();
pairwise_rank_loss: np.maximum(1 - x + y, 0); soft_margin_loss: np.log(1 + np.exp(-y * x)).mean();
pickneglogsoftmax: cross_entropy(x); multi_margin_loss: np.maximum(1 - x[I] + np.delete(x, I), 0).sum() / 4; cube: x**3;
rsqrt: abs(x) ** -0.5; reciprocal: 1 / x; exp2: 2**x; log2: np.log2(abs(x)); log10: np.log10(abs(x));
expm1: np.expm1(x); log1p: np.log1p(abs(x)); logit: np.log(x / (1 - x)); logaddexp: np.logaddexp(x, y); tan: np.tan(x);
cosh: np.cosh(x); softsign: x / (1 + abs(x)); log_sigmoid: np.log(logistic(x));
selu: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)); celu: np.where(x > 0, x, np.expm1(x));
relu6: np.clip(x, 0, 6); hardtanh: np.clip(x, -1, 1); hardsigmoid: np.clip(x + 3, 0, 6) / 6;
hardswish: x * np.clip(x + 3, 0, 6) / 6; hardshrink: np.where(abs(x) > 0.5, x, 0);
softshrink: np.sign(x) * np.maximum(abs(x) - 0.5, 0); mish: x * np.tanh(np.log(1 + np.exp(x)));
glu: x[:2] * logistic(x[2:]); prelu: np.where(x > 0, x, y * x); softmin: softmax(-x); pick_range: x[1:3];
concatenate: np.concatenate([x, y]); concatenate_cols: np.stack([x, y], axis=1); vstack: np.stack([x, y]);
colwise_add: A + x[:, None]; affine_transform: A.T @ x + y[:3]; mm: A.T @ x; bilinear_form: x @ (A @ A.T) @ y
""".strip()))
}  # fmt: skip
WITHOUT_ITS_GRADIENT = {"nobackprop": (1.0, 0.0), "flip_gradient": (1.0, -1.0), "scale_gradient": (1.0, 0.1)}
POSITIVE = {"rsqrt", "log2", "log10", "log1p"}
BELOW_ONE = {"logit"}
FORMULAS = {
    names.split()[0]: formula.partition(" | ")[0]
    for names, _, formula in (line.partition(": ") for line in hints.FORMULAS.strip().splitlines())
}


def at(name: str) -> NDArray[np.float64]:
    return logistic(X) if name in BELOW_ONE else abs(X) if name in POSITIVE else X


def computed(name: str, graph: vpps.Graph, x: Any) -> Any:
    a = graph.input({"affine_transform": A.T, "mm": A.T, "bilinear_form": A @ A.T}.get(name, A))
    y = graph.input(Y[:3] if name == "affine_transform" else Y)
    given = {"vpps": vpps, "x": x, "y": y, "xs": [x, y], "A": a, "B": graph.input(B), "i": I}
    return eval(FORMULAS[name], given)


@pytest.mark.cpu
def test_formulas_of_hints_compute_and_differentiate_right() -> None:
    """Compares with NumPy and finite differences; all at once, so that there is one kernel."""
    assert set(FORMULAS) == {*TRUTH, *WITHOUT_ITS_GRADIENT}
    graph, rng = vpps.Graph(), np.random.default_rng(1)
    xs = {name: graph.input(at(name), grad=True) for name in FORMULAS}
    found = {name: computed(name, graph, x) for name, x in xs.items()}
    weights = {name: rng.normal(size=y.shape) for name, y in found.items()}
    loss = vpps.sum([vpps.sum(y * graph.input(weights[name])) for name, y in found.items()])
    with vpps.Handle(vpps.Model(), vps=1) as handle:
        handle.gradients(graph, loss)
        for name, x in xs.items():
            value, slope = handle.value(found[name]), handle.input_gradient(x)
            if name in WITHOUT_ITS_GRADIENT:
                factor, through = WITHOUT_ITS_GRADIENT[name]
                assert np.allclose(value, factor * X), name
                assert np.allclose(slope, through * weights[name]), name
                continue
            assert np.allclose(value, TRUTH[name](at(name), Y), rtol=1e-5, atol=1e-6), name
            steps = 1e-6 * np.eye(4)
            sides = [[np.sum(weights[name] * TRUTH[name](at(name) + sign * d, Y)) for d in steps] for sign in (1, -1)]
            assert np.allclose(slope, np.subtract(*sides) / 2e-6, rtol=1e-4, atol=1e-5), name


def test_a_class_of_a_user_may_take_other_arguments_than_its_base() -> None:
    class Head(Linear):
        def __init__(self, sizes: tuple[int, int]) -> None:
            super().__init__(vpps.Model(), *sizes)

    assert Head((2, 3)).W.shape == (3, 2)
    with pytest.raises(TypeError, match="Head"):
        Head()  # type: ignore[call-arg]


@pytest.mark.parametrize("name", sorted({name for name, _ in ARGUMENTS}))
def test_arguments_of_other_libraries_get_a_hint(name: str) -> None:
    called = (
        getattr(vpps, name, None)
        or getattr(vpps.nn, name, None)
        or inspect.getattr_static(vpps.Handle, name).__wrapped__
    )  # without the lock
    for owner, keyword in ARGUMENTS:
        if owner == name:
            options = {} if keyword == "-" else {keyword: 1}
            hint = ARGUMENTS[name, keyword]
            error = vpps.HandleError if hint.startswith("removed") else TypeError
            with pytest.raises(error, match=re.escape(hint)) as caught:
                called(*["x"] * 9 * (keyword == "-"), **options)
            assert str(caught.value).startswith(f"{name}(")


@pytest.mark.parametrize("layer", ["LSTM", "GRU", "BiLSTM", "Linear", "MLP", "Embedding", "NaryTreeLSTM"])
def test_a_layer_without_a_model_says_that_it_comes_first(layer: str) -> None:
    for sizes in ((10, 20), (10, 20, 2), (10, 20, 2, 3)):
        with pytest.raises(TypeError, match=rf"the model comes first: vpps\.nn\.{layer}\(model, "):
            getattr(vpps.nn, layer)(*sizes)


def test_a_type_error_from_within_keeps_its_words() -> None:
    def concat(x: int) -> int:
        return len(x)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match=r"^object of type 'int' has no len\(\)$"):
        hinted(concat)(1)


def test_what_is_no_habit_gets_words_of_python() -> None:
    with pytest.raises(AttributeError, match=r"^'Expression' object has no attribute 'colour'$"):
        vpps.Graph().zeros(2).colour  # type: ignore[attr-defined]  # noqa: B018


def test_a_property_of_a_subclass_says_itself_why_it_fails() -> None:
    class Counted(vpps.Model):
        @property
        def numel(self) -> int:
            raise AttributeError("nothing was counted")

    with pytest.raises(AttributeError, match=r"^nothing was counted$"):
        Counted().numel  # noqa: B018


@pytest.mark.parametrize(
    "owner, name, message",
    [
        ("Parameter", "requires_grad", r"cannot be set; p\.trainable = False freezes it"),
        ("Parameter", "data", r"cannot be set; .* p\.assign\(array\) replaces them"),
        ("Parameter", "grad", r"cannot be set; handle\.gradients"),
        ("Parameter", "trainble", "no attribute 'trainble'"),
        ("Parameter", "shape", "'shape' of 'Parameter' object has no setter"),
        ("Parameter", "name", "'name' of 'Parameter' object has no setter"),
        ("Expression", "shape", "'shape' of 'Expression' object has no setter"),
        ("Rows", "shape", "'shape' of 'Rows' object has no setter"),
        ("Model", "seed", "'seed' of 'Model' object has no setter"),
        ("Model", "sed", "no attribute 'sed'"),
        ("Handle", "lr", r"<vpps.Handle.*>\.lr cannot be set; handle\.optimizer\.lr = "),
        ("Handle", "learning_rate", r"handle\.optimizer\.lr = "),
        ("Handle", "clip", r"cannot be set; handle\.clip_norm = "),
        ("Handle", "model", "'model' of 'Handle' object has no setter"),
        ("Handle", "ema_", "no attribute 'ema_'"),
        ("Optimizer", "learning_rate", r"cannot be set; optimizer\.lr = "),
        ("Adam", "betas", r"cannot be set; they are optimizer\.beta1"),
        ("Optimizer", "beta_1", "no attribute 'beta_1'"),
        ("Layer", "weight", r"cannot be set; parameters are attributes such as layer\.W.*layer\.load replaces them"),
        ("Graph", "loss", "no attribute 'loss'"),
        ("GraphSet", "arrays", "'arrays' of 'GraphSet' object has no setter"),
    ],
)
def test_what_nobody_reads_or_may_change_is_not_set(owner: str, name: str, message: str) -> None:
    with vpps.Handle(vpps.Model(), target="cpu") as handle:
        there = {**owners(), "Handle": handle, "Graph": vpps.Graph(), "GraphSet": vpps.data.GraphSet([1], [[-1]])}
        before = getattr(there[owner], name, None)
        with pytest.raises(AttributeError, match=message):
            setattr(there[owner], name, 0.0)
        assert getattr(there[owner], name, None) is before


def test_classes_of_users_have_attributes_of_their_own() -> None:
    class Trainer(vpps.Handle):
        lr = 0.5

    class Head(Linear):
        pass

    @dataclass
    class Mine(vpps.Adam):
        warmup: int = 3

    class Slotted(vpps.Adam):
        __slots__ = ()

    with pytest.raises(AttributeError, match=r"they are optimizer\.beta1"):
        Slotted(0.1).betas = 0.2  # type: ignore[attr-defined]
    assert weakref.ref(rate := vpps.SGD(0.1))() is rate
    model = vpps.Model()
    head, optimizer = Head(model, 2, 3), Mine(0.1)
    head.weight, head.note = 2.0, "mine"  # type: ignore[attr-defined]
    optimizer.betas, optimizer.warmup = 0.2, 4  # type: ignore[attr-defined]
    assert (head.weight, head.note, optimizer.betas, optimizer.warmup) == (2.0, "mine", 0.2, 4)  # type: ignore[attr-defined]
    with Trainer(model, optimizer, target="cpu") as handle:
        handle.lr, handle.best = 0.1, 3.0  # type: ignore[attr-defined]
        assert (handle.lr, handle.best) == (0.1, 3.0)  # type: ignore[attr-defined]


def test_the_number_of_steps_may_be_set() -> None:
    model = vpps.Model()
    model.step = 7
    assert repr(model) == "<vpps.Model: 0 parameters, 0 weights, 7 steps>"


def test_help_describes_what_cannot_be_set() -> None:
    kinds = [
        value for module in list(sys.modules.values()) for value in vars(module).values() if isinstance(value, type)
    ]
    documented = 0
    for kind in {kind for kind in kinds if str(kind.__module__).startswith("vpps.")}:
        for name, value in vars(kind).items():
            if isinstance(value, property) and not name.startswith("_"):
                assert not isinstance(value.fget, attrgetter) or "callable" not in (value.__doc__ or "callable"), name
                documented += isinstance(value.fget, attrgetter)
    assert documented >= 13
