"""Tests in this folder record with compiled code if it exists. test_recorders.py and test_packed.py compare it with the
Python recorder."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.recorders import compiled_recorder


@pytest.fixture(autouse=True)
def default_recorder(use_recorder: Callable[[str], None]) -> None:
    use_recorder("compiled" if compiled_recorder() else "python")
