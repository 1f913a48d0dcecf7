"""Every code block of the documentation runs and prints the page's output."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.caches import cache_with_kernels
from tests.docs.blocks import INCLUDE, RUN, PageError, blocks_of, run_page
from tests.processes import ROOT, TIMEOUT

DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)
BLOCKS = {page: blocks_of(page) for page in PAGES}
WITH_BLOCKS = {page: blocks for page, blocks in BLOCKS.items() if any(b.language in RUN for b in blocks)}

# Reasons why none of our machines can run a block, and the largest number of blocks for each reason.
NOT_RUN = {"installs packages": 1, "depends on the machine": 1, "trees.py is a file of the tutorial": 1}

# Commands that change a user's shared files: measured choices and compiled kernels.
OWN_CACHE = ("vpps-profile", "vpps-cache")


def name_of(page: Path) -> str:
    return str(page.relative_to(DOCS))


@pytest.mark.cpu
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            marks=[pytest.mark.frameworks] if any(b.marks.get("needs") in ("torch", "jax") for b in blocks) else [],
        )
        for page, blocks in WITH_BLOCKS.items()
    ],
    ids=name_of,
)
def test_blocks_of_a_page_do_what_it_says(page: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for name in ("VPPS_PASSES", "VPPS_VERIFY"):  # set for the other tests; pages show a user's output
        environment.pop(name, None)
    folder = tmp_path / "page"
    folder.mkdir()
    if any(name in block.text for block in blocks_of(page) for name in OWN_CACHE):
        environment["VPPS_CACHE_DIR"] = str(cache_with_kernels(tmp_path / "cache"))
    run = subprocess.run(
        [sys.executable, "-m", "tests.docs.blocks", str(page)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * TIMEOUT,
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.host
def test_few_blocks_are_not_run() -> None:
    reasons = Counter(b.marks["not run"] for page in PAGES for b in blocks_of(page) if "not run" in b.marks)
    assert {r: n for r, n in reasons.items() if n > NOT_RUN.get(r, 0)} == {}


@pytest.mark.host
def test_a_program_is_linked_in_the_section_that_shows_it() -> None:
    """On GitHub, an include shows as an empty box."""
    unlinked = []
    for page, blocks in BLOCKS.items():
        lines = page.read_text(encoding="utf-8").splitlines()
        for block in (b for b in blocks if b.language.startswith(INCLUDE)):
            section = "\n".join(lines[: block.line]).rpartition("\n## ")[2]
            if f"]({block.language.removeprefix(INCLUDE).strip()})" not in section:
                unlinked.append(block.where)
    assert unlinked == []


@pytest.mark.host
def test_programs_are_shown_and_do_nothing_when_they_are_imported() -> None:
    programs = sorted((DOCS / "programs").glob("*.py"))
    shown = {b.language.rpartition("/")[2] for blocks in BLOCKS.values() for b in blocks if b.language not in RUN}
    assert [p.name for p in programs if p.name not in shown] == []
    only_says = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.FunctionDef, ast.ClassDef)
    for program in programs:
        _, *body, last = ast.parse(program.read_text(encoding="utf-8")).body  # all but its docstring
        assert [ast.unparse(statement) for statement in body if not isinstance(statement, only_says)] == []
        assert isinstance(last, ast.If)
        assert ast.unparse(last.test) == "__name__ == '__main__'"


@pytest.mark.host
@pytest.mark.parametrize(
    "text, message",
    [
        ("```python\nprint(1)\n```\n```output\n2\n```\n", "page.md:1: the page says"),
        ("Words.\n\n```python\n1 / 0\n```\n", "page.md:3: Traceback.*ZeroDivisionError"),
        ("<!-- raises: ValueError -->\n```python\nx = 1\n```\n", "raised no ValueError"),
        ("```console\n$ false\n```\n", "status 1"),
        ("```console\n$ echo 1\n2\n```\n", "the page says"),
        ("```console\necho 1\n```\n", "no line begins with"),
        ("```output\n1\n```\n", "follows no block of Python"),
        ("```ruby\n1\n```\n", "'ruby' is none of"),
        ("```{code-block} python\n1\n```\n", "write ```python"),
        ("<!-- skip: me -->\n```python\n1\n```\n", "expected one of not run"),
    ],
)
def test_a_page_whose_blocks_do_something_else_fails(text: str, message: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    with pytest.raises(PageError, match=f"(?s){message}"):
        run_page(page)
