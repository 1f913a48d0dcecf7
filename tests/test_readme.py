"""README is short; the documentation's tests run its program, and the files it names exist."""

from __future__ import annotations

import os
import re

import pytest

from tests.processes import ROOT
from vpps.targets import TARGETS

pytestmark = pytest.mark.host

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_has_at_most_120_lines() -> None:
    assert len(README.splitlines()) <= 120


def test_its_program_is_the_one_that_the_first_page_of_the_documentation_runs() -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
    assert program == (ROOT / "docs/programs/quickstart.py").read_text(encoding="utf-8")


def test_its_commands_exist() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    scripts = set(re.findall(r"\bscripts/[\w-]+", README + contributing))
    assert {"scripts/quickstart", "scripts/test"} <= scripts
    assert [name for name in scripts if not os.access(ROOT / name, os.X_OK)] == []


def test_its_targets_are_all_that_there_are() -> None:
    assert re.findall(r"^\| `(\w+)` \|", README, flags=re.MULTILINE) == ["cpu", "simt", "cuda"]
    assert set(TARGETS) == {"cpu", "simt", "cuda"}


@pytest.mark.parametrize("page", ["*.md", "bench/README.md", "design/*.md"])
def test_relative_links_lead_somewhere(page: str) -> None:
    """Links of pages that Sphinx does not check."""
    pages = list(ROOT.glob(page))
    links = [(p, link) for p in pages for link in re.findall(r"\]\((?!https?:)([^)#\s]+)", p.read_text("utf-8"))]
    assert pages
    assert [link for link in links if not link[0].parent.joinpath(link[1]).exists()] == []
