"""All tests of this folder run twice: graphs are recorded in Python, and by the compiled recorder."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture(autouse=True, params=["python", "compiled"])
def recorder(request: pytest.FixtureRequest, use_recorder: Callable[[str], None]) -> str:
    use_recorder(request.param)
    kind: str = request.param
    return kind
