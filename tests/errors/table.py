"""Reads tables of mistakes: a signature in brackets, and below it lines `call  # Error: message`.

In a message, `*` matches anything. An indented line continues the previous line. A call with alternatives between
backticks, such as "Handle(vps=`0 | -1`)", is several calls; a backtick in its message is the alternative.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

import vpps


class Mistake(NamedTuple):
    """A row of the table."""

    signature: str
    call: str
    error: type[BaseException]
    message: str

    def refused(self, names: Mapping[str, Any]) -> str:
        """Make the mistake; returns the error message without its numbers, which count graphs and calls."""
        return re.sub(r"\d+", "0", self._message(names))

    def explained(self, names: Mapping[str, Any]) -> str:
        """Make the mistake and check the error message; returns the message."""
        message = self._message(names)
        expected = ".*".join(map(re.escape, self.message.split("*")))
        assert re.search(expected, message, re.DOTALL), f"expected {self.message!r}, got {message!r}"
        return re.sub(r"\d+", "0", message)

    def _message(self, names: Mapping[str, Any]) -> str:
        if "torch." in self.call:
            names = {**names, "torch": pytest.importorskip("torch")}
        with pytest.raises(self.error) as caught:
            eval(self.call, {**names})
        assert caught.type is self.error
        return str(caught.value)


def read(table: str) -> list[Mistake]:
    """Return the mistakes in a table."""
    found, signature = [], ""
    for line in re.sub(r"\n {4,}", "  ", table).strip().splitlines():
        if line.startswith("["):
            signature = line.strip("[]")
        elif line:
            call, _, rest = line.partition("  # ")
            name, _, message = rest.partition(": ")
            error = getattr(vpps, name, None) or getattr(builtins, name)
            before, *alternatives, after = call.split("`") if "`" in call else (call, "", "")
            each = alternatives[0].split(" | ")
            found += [Mistake(signature, before + a + after, error, message.replace("`", a)) for a in each]
    return found


def parametrized(mistakes: list[Mistake]) -> pytest.MarkDecorator:
    """Parametrize a test with the mistakes."""
    return pytest.mark.parametrize("mistake", mistakes, ids=[f"{m.signature}: {m.call}" for m in mistakes])
