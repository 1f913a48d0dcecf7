"""A real Chromium without a screen, for tests. They skip where there is none, or no playwright to drive it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser, as playwright's `Browser`. It has no network: pages are files, or what a test serves by `route`."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, which drives a browser")
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        pytest.skip("needs a browser: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()
