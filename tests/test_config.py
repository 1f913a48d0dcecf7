"""vpps reads only the environment variables listed in its table."""

from __future__ import annotations

import ast
import logging
import os
import re
import tempfile
import warnings
from pathlib import Path

import pytest

from tests.processes import finish, start
from vpps import config

pytestmark = pytest.mark.host

PACKAGE = Path(config.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
HANDED_ON = "PYTHONPATH"  # passed on to our processes; no variable of vpps


def reads_of(path: Path) -> list[str]:
    """Return the places where a file reads individual variables. Passing the whole environment on is allowed."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = []
    for node in ast.walk(tree):
        text = ast.unparse(node) if isinstance(node, ast.Call | ast.Subscript) else ""
        if re.match(r"(os\.)?(getenv\(|environb?(\[|\.))", text) and HANDED_ON not in text:
            found.append(f"{path.name}:{node.lineno}: {text}")
    return found


def test_nothing_else_reads_the_environment() -> None:
    assert reads_of(PACKAGE / "config.py")  # proves that the search works
    assert [read for path in SOURCES if path != PACKAGE / "config.py" for read in reads_of(path)] == []


def test_every_name_of_a_variable_is_in_the_table_once() -> None:
    """Messages and docstrings mention only variables that are listed in the table."""
    texts = [path.read_text(encoding="utf-8") for path in SOURCES]
    found = {name for text in texts for name in re.findall(r"\bVPPS_[A-Z]+(?:_[A-Z]+)*\b", text)}
    names = [variable.name for variable in config.VARIABLES]
    assert found == {name for name in names if name.startswith("VPPS_")}
    assert len(set(names)) == len(names)
    assert all(variable.doc for variable in config.VARIABLES)


LOGS = """
    import logging, sys
    {before}
    import vpps
    logging.getLogger("vpps.kernel").info("for your information")
    logging.getLogger("vpps.kernel").warning("be careful")
    logging.getLogger("others").info("not ours")
"""


class TestLog:
    def test_goes_to_standard_error_unless_a_program_sets_up_logging(self) -> None:
        status, out, err = finish(start(LOGS.format(before=""), {"VPPS_LOG": "INFO"}))
        assert (status, out) == (0, "")
        assert [line.split(" vpps.kernel: ")[1] for line in err.splitlines()] == ["for your information", "be careful"]
        before = "logging.basicConfig(stream=sys.stdout, format='%(message)s')"
        found = finish(start(LOGS.format(before=before), {"VPPS_LOG": "info"}))
        assert found == (0, "for your information\nbe careful\n", "")

    @pytest.mark.parametrize("level", ["", "loud"])
    def test_is_left_as_it_is_without_a_level(self, monkeypatch: pytest.MonkeyPatch, level: str) -> None:
        monkeypatch.setenv("VPPS_LOG", level)
        logger = logging.getLogger("vpps")
        before = (logger.level, list(logger.handlers))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            config.start_logging()
        assert (logger.level, logger.handlers) == before
        expected = [f"VPPS_LOG={level}: expected debug, info, warning or error"] if level else []
        assert [str(warning.message) for warning in told] == expected


def test_a_user_without_a_home_has_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    for name in ("VPPS_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert config.cache_dir() == Path(tempfile.gettempdir()) / f"vpps-cache-{os.getuid()}"
