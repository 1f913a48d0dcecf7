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


@pytest.mark.parametrize(
    "given, message",
    [
        ({"target": None}, "target=None: expected 'auto', 'cpu', 'cuda' or 'simt'"),
        ({"policy": 3}, "policy=3: expected a string"),
        ({"schedule": "x"}, "schedule='x': expected one of vector, paper"),
        ({"verify": "no"}, "verify='no': expected True or False"),
        ({"train": None}, "train=None: expected True or False"),
        ({"ema": 1}, "ema=1: expected a number in [0, 1), such as 0.999, or None"),
        ({"ema": 0.9, "train": False}, "ema=0.9: expected None, as the handle is forward-only"),
        ({"pool_limit": "1G"}, "pool_limit='1G': expected a positive int, bytes"),
        ({"onchip": {}}, "onchip={}: expected vpps.ChipOptions(...)"),
        ({"passes": "all"}, "passes='all': expected vpps.Passes(...)"),
        ({"example": 1}, "example=1: expected (graph, loss), as for handle.fb"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_is_wrong_with_an_option_is_said(given: dict[str, Any], message: str) -> None:
    with pytest.raises(vpps.HandleError, match=f"^{re.escape(message)}$"):
        vpps.Handle(vpps.Model(seed=1), **given)
