"""The table of handle options determines the signature and documentation of `Handle`."""

from __future__ import annotations

import inspect
import re

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
