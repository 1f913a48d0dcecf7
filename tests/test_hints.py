"""What users of PyTorch and DyNet try first leads to what does it here."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import vpps
import vpps.data
from vpps.hints import ARGUMENTS, HINTS, hinted
from vpps.nn import Linear

pytestmark = pytest.mark.host


def owners() -> dict[str, object]:
    """One of each."""
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
    there |= {"x": vpps.Expression, "layer": there["Layer"]}
    for hint in set(HINTS.values()):
        for owner, name in re.findall(r"\b(vpps|graph|handle|model|p|x|layer)\.(\w+)", hint):
            assert hasattr(there[owner], name), hint


@pytest.mark.parametrize("name", sorted({name for name, _ in ARGUMENTS}))
def test_arguments_of_other_libraries_get_a_hint(name: str) -> None:
    called = getattr(vpps, name, None) or inspect.getattr_static(vpps.Handle, name).__wrapped__  # without the lock
    for owner, keyword in ARGUMENTS:
        if owner == name:
            options = {} if keyword == "-" else {keyword: 1}
            with pytest.raises(TypeError, match=re.escape(ARGUMENTS[name, keyword])) as caught:
                called(*["x"] * 9 * (keyword == "-"), **options)
            assert str(caught.value).startswith(f"{name}() ")


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


def test_the_number_of_steps_may_be_set_to_what_it_can_be() -> None:
    model = vpps.Model()
    model.step = 7
    for wrong in (-5, 2.5, "8", 2**63):
        with pytest.raises(vpps.ModelError, match=r"model\.step=.*: expected an int, 0 to"):
            model.step = wrong  # type: ignore[assignment]
    assert repr(model) == "<vpps.Model: 0 parameters, 0 weights, 7 steps>"


def test_a_parameter_is_no_attribute_of_its_model() -> None:
    model = vpps.Model()
    model.parameter("W", (2,))
    with pytest.raises(AttributeError, match=r"no attribute 'W'; that parameter is model\['W'\]"):
        model.W  # type: ignore[attr-defined]  # noqa: B018


def test_a_cell_of_a_layer_is_called_and_not_the_layer() -> None:
    with pytest.raises(vpps.ModelError, match="LSTM is no function; it has the cells begin and step"):
        vpps.nn.LSTM(vpps.Model(), 2, 3)([])  # type: ignore[operator]


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_handle_is_not_copied(copied: Callable[[object], object]) -> None:
    with pytest.raises(vpps.HandleError, match=r"handle cannot be pickled or copied.*model.save\(path\)"):
        copied(owners()["Handle"])


def test_a_model_is_no_function() -> None:
    with pytest.raises(vpps.ModelError, match=r"has the weights and computes nothing: cells and functions of yours do"):
        vpps.Model()(np.ones(3))
