"""The programs, files and pages named in README and in the package index's description exist."""

from __future__ import annotations

import os
import re
import tomllib

import pytest

import vpps
from hatch_build import describe
from tests.processes import ROOT
from vpps.targets import TARGETS

pytestmark = pytest.mark.host

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_has_at_most_105_lines() -> None:
    assert len(README.splitlines()) <= 105


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
    """Links in pages that Sphinx does not check."""
    pages = list(ROOT.glob(page))
    links = [(p, link) for p in pages for link in re.findall(r"\]\((?!https?:)([^)#\s]+)", p.read_text("utf-8"))]
    assert pages
    assert [link for link in links if not link[0].parent.joinpath(link[1]).exists()] == []


def test_the_description_for_the_package_index_stands_alone() -> None:
    text = describe(ROOT, PROJECT["urls"])
    assert text.split("```")[1].strip().startswith("pip install vpps ")
    assert (ROOT / "docs/programs/quickstart.py").read_text(encoding="utf-8") in text
    assert set(PROJECT["optional-dependencies"]) <= set(re.findall(r"\w+", text))
    links = re.findall(r"\]\(([^)]*)", text)
    assert [link for link in links if not link.startswith("https://")] == []
    pages = re.findall(r"\]\(" + re.escape(PROJECT["urls"]["Documentation"]) + r"/(.*?)\.html", text)
    assert [page for page in pages if not (ROOT / "docs" / f"{page}.md").exists()] == []


def test_the_citation_agrees_with_the_project() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    fields = dict(re.findall(r"^([\w-]+): (.*)$", citation, flags=re.MULTILINE))
    project = (vpps.__version__, PROJECT["description"], PROJECT["license"], PROJECT["urls"]["Source"])
    assert tuple(fields[name] for name in ("version", "abstract", "license", "repository-code")) == project
