"""Functions derived from the op table; `python -m tests.graph.test_primitives` writes their stub."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path
from typing import get_type_hints

import pytest

import vpps
from vpps.graph import derive

pytestmark = pytest.mark.host

STUB = Path(derive.__file__).with_name("primitives.pyi")


def stub() -> str:
    """Return the functions' stub for type checkers and editors."""
    names = textwrap.fill(", ".join(f'"{name}"' for name in sorted(derive.DERIVED)), 116, break_on_hyphens=False)
    return (
        "# Of the op table: python -m tests.graph.test_primitives\n"
        '# mypy: disable-error-code="overload-overlap"\n'
        "from typing import overload\n\n"
        "from vpps.graph.derive import Label, Labels, One, Value\n"
        "from vpps.ops.operand import Expression\n"
        "from vpps.record.rows import Rows\n\n"
        f"__all__ = [\n{textwrap.indent(names, '    ')},\n]\n\n" + "".join(map(derive.stub, derive.DERIVED.values()))
    )


def test_the_stub_is_that_of_the_table() -> None:
    assert STUB.read_text(encoding="utf-8") == stub(), "write it anew: python -m tests.graph.test_primitives"


@pytest.mark.parametrize("name", derive.DERIVED)
def test_functions_say_what_they_take_and_do(name: str) -> None:
    function = getattr(vpps, name)
    assert name in vpps.__all__
    assert function.__name__ == function.__qualname__ == name
    assert function.__module__ == "vpps.graph.primitives"
    assert get_type_hints(function)["return"] is vpps.Expression
    text = inspect.getdoc(function) or ""
    assert text.endswith(".")
    assert "row by row" in text
    assert f'return record("{name}", [' in inspect.getsource(function)


def test_a_signature_has_operands_then_ints_then_the_constant() -> None:
    found = {name: str(inspect.signature(getattr(vpps, name))) for name in ("tanh", "maximum", "elu", "hinge")}
    assert found == {
        "tanh": "(x: 'Value') -> 'Expression'",
        "maximum": "(a: 'Value', b: 'Value') -> 'Expression'",
        "elu": "(x: 'Value', alpha: 'float' = 1.0) -> 'Expression'",
        "hinge": "(logits: 'Value', label: 'int | Index', margin: 'float' = 1.0) -> 'Expression'",
    }


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
