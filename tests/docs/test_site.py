"""The site builds in strict mode without a network, and its references are complete."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import vpps
import vpps.callbacks
import vpps.data
import vpps.nn
import vpps.zoo
from tests.processes import ROOT, TIMEOUT
from vpps.ops import OPS
from vpps.script.instructions import TABLE

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(importlib.util.find_spec("sphinx") is None, reason="Sphinx is absent: scripts/docs installs it"),
]

# Builds like scripts/docs, in a process without network access.
BUILD = """
import sys
def refuse(event, arguments):
    if event == "socket.connect":
        raise RuntimeError(f"the build connects to {arguments[1]}")
sys.addaudithook(refuse)
from sphinx.cmd.build import main
sys.exit(main(["--fail-on-warning", "--keep-going", "--nitpicky", "-q", *sys.argv[1:]]))
"""

BYTES_OF_A_PICTURE = 300_000


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the built pages."""
    out = tmp_path_factory.mktemp("site")
    build = subprocess.run(
        [sys.executable, "-c", BUILD, str(ROOT / "docs"), str(out)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * TIMEOUT,
    )
    assert build.returncode == 0, build.stdout + build.stderr
    return out


def test_modules_that_promises_are_tested_by_are_there() -> None:
    table = [line for line in (ROOT / "docs/promises.md").read_text().splitlines() if line.startswith("|")]
    named = re.findall(r"`((?:\w+/)*test_\w+|(?:\w+/)+)`", "".join(table))
    assert len(named) > 30
    assert [name for name in named if not any((ROOT / "tests" / f"{name}{end}").exists() for end in ("", ".py"))] == []


def test_every_public_name_is_documented(site: Path) -> None:
    from sphinx.util.inventory import InventoryFile

    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    documented = {name for kind, items in inventory.data.items() if kind.startswith("py:") for name in items}
    modules = {m.__name__: m for m in (vpps, vpps.nn, vpps.data, vpps.zoo, vpps.callbacks, vpps.distributed)}
    public = {f"{module}.{name}" for module, found in modules.items() for name in found.__all__}
    assert public - documented - {"vpps.init"} == set()
    assert {"vpps.Handle.fb", "vpps.Model.save", "vpps.Graph.map", "vpps.init.orthogonal"} <= documented
    assert {"vpps.Cell.__call__", "vpps.Rows.__getitem__", "vpps.Rows.__matmul__", "vpps.Model.__iter__"} <= documented
    assert {"vpps.Model.trainer", "vpps.Handle.pull_weights", "vpps.Handle.is_newer"} & documented == set()


def test_signatures_are_readable(site: Path) -> None:
    """No alias is expanded, and no default is shown as an object's repr."""
    pages = {page.stem: page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html")}
    heads = {
        (name, head) for name, page in pages.items() for head in re.findall(r"<dt class=\"sig.*?</dt>", page, re.DOTALL)
    }
    unreadable = re.compile(r"_Buffer|_NestedSequence|TypeAliasForwardRef|ndarray\[|factory|function |~")
    assert len(heads) > 300
    assert [(n, found) for n, head in heads if (found := unreadable.search(re.sub(r"<[^>]+>", "", head)))] == []


def test_references_have_every_row_of_their_tables(site: Path) -> None:
    instructions = (site / "reference" / "instructions.html").read_text(encoding="utf-8")
    assert [i.name for i in TABLE if f">{i.name}<" not in instructions] == []
    ops = (site / "reference" / "ops.html").read_text(encoding="utf-8")
    assert [name for name in OPS if f">{name}<" not in ops] == []


def test_pictures_are_small() -> None:
    pictures = list((ROOT / "docs" / "pictures").iterdir())
    assert [p.name for p in pictures if p.stat().st_size > BYTES_OF_A_PICTURE] == []
