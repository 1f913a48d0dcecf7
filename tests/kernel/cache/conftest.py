"""Isolated caches: each test only touches caches and temporary directories in the test's folder."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from vpps.kernel.cache import places


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary directory, for this process and the processes that the test starts."""
    folder = tmp_path / "temporary"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(places, "_told", set())
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that does not exist yet."""
    monkeypatch.setenv("VPPS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"
