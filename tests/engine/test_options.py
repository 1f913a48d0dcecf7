"""The table of a handle's options: its signature, its documentation and its messages are the table's."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import vpps
from vpps.engine.options import OPTIONS

pytestmark = pytest.mark.host


def test_the_signature_of_a_handle_is_the_table() -> None:
    _, model, *arguments = inspect.signature(vpps.Handle.__init__).parameters.values()
    assert model.name == "model"
    assert [(a.name, a.default, a.annotation) for a in arguments] == [(o.name, o.default, o.type) for o in OPTIONS]


def test_every_option_is_documented() -> None:
    text = inspect.getdoc(vpps.Handle) or ""
    section = text[text.index("Args:") : text.index("Raises:")]
    assert re.findall(r"^    (\w+): ", section, re.MULTILINE) == ["model", *(o.name for o in OPTIONS)]
    assert max(map(len, text.splitlines())) <= 120


PRECISION = "one of float32, bf16, tf32, 3xtf32, or such by names"


@pytest.mark.parametrize(
    "given, message",
    [
        ({"target": None}, "target=None: expected 'auto', 'cpu', 'cuda' or 'simt'"),
        ({"schedule": 3}, "schedule=3: expected a string"),
        ({"schedule": "x"}, "schedule='x': expected one of vector, paper"),
        ({"verify": "no"}, "verify='no': expected True or False"),
        ({"train": None}, "train=None: expected True or False"),
        ({"ema": 1}, "ema=1: expected a number in [0, 1), such as 0.999, or None"),
        ({"ema": 0.9, "train": False}, "ema=0.9: expected None, as the handle is forward-only"),
        ({"pool_limit": "1G"}, "pool_limit='1G': expected a positive int, bytes"),
        ({"onchip": {}}, "onchip={}: expected vpps.ChipOptions(...)"),
        ({"passes": "all"}, "passes='all': expected vpps.Passes(...)"),
        ({"precision": 16}, f"precision=16: expected {PRECISION}"),
        ({"precision": None}, f"precision=None: expected {PRECISION}"),
        ({"precision": {"W": 16}}, f"precision={{'W': 16}}: expected {PRECISION}"),
        ({"precision": "bf 16"}, f"precision='bf 16': expected {PRECISION}"),
        (
            {"precision": "bfloat16"},
            f"precision='bfloat16': expected {PRECISION}; 'bf16' rounds what products multiply, and all else is "
            "float32",
        ),
        (
            {"precision": {"*": "fp16"}},
            f"precision={{'*': 'fp16'}}: expected {PRECISION}; there is 'bf16', with the range of float32, so that no "
            "loss is scaled",
        ),
        (
            {"precision": {"output": "bf16"}},
            "precision={'output': 'bf16'}: there is no parameter 'output'; is 'output/W' meant?",
        ),
        ({"precision": {"V": "bf16"}}, "precision={'V': 'bf16'}: there is no parameter 'V'; there are output/W"),
        *(
            (
                {"precision": {"*": "bf16", name: "float32"}},
                f"precision={{'*': 'bf16', '{name}': 'float32'}}: '{name}' is no matrix that vectors are multiplied "
                "by, and all else is float32; leave it out",
            )
            for name in ("output/b", "words")
        ),
        (
            {"precision": {"output/W": "tf32"}, "target": "cpu"},
            "precision={'output/W': 'tf32'}: target 'cpu' has no tensor cores and multiplies in float32 or bf16; use "
            "one of them, or target='cuda' or 'simt'",
        ),
        ({"example": 1}, "example=1: expected (graph, loss), as for handle.fb"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_is_wrong_with_an_option_is_said(given: dict[str, Any], message: str) -> None:
    model = vpps.Model(seed=1)
    model.parameter("output/W", (2, 2))
    model.parameter("output/b", (2,))
    model.lookup("words", (2, 2))
    with pytest.raises(vpps.HandleError, match=f"^{re.escape(message)}$"):
        vpps.Handle(model, **given)
    if "precision" in given:
        with pytest.raises(vpps.HandleError, match=f"^{re.escape(message)}$"):
            vpps.specialize(model, **{"target": "cpu", **given})


def test_types_of_other_libraries_are_no_precisions() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: scripts/test --torch installs it")
    with pytest.raises(vpps.HandleError, match=r"^precision=torch\.bfloat16: .*; 'bf16' rounds what products"):
        vpps.Handle(vpps.Model(), precision=torch.bfloat16)
    with pytest.raises(TypeError, match=r"^Handle\(\) .*'dtype'; precision='bf16' rounds what products multiply"):
        vpps.Handle(vpps.Model(), dtype=torch.bfloat16)


@pytest.mark.parametrize("precision", ["bf16", "tf32", "3xtf32", {"output/W": "bf16"}])
def test_tensor_cores_came_with_sm_80(precision: str | dict[str, str]) -> None:
    model = vpps.Model()
    model.parameter("output/W", (2, 2))
    message = f"precision={precision!r}: T4 is sm_75, and takes tensor cores that came with sm_80; use 'float32'"
    with pytest.raises(vpps.HandleError, match=f"^{re.escape(message)}$"):
        vpps.specialize(model, device="T4", precision=precision)
