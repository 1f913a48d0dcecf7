"""The table of environment variables is all that vpps reads of the environment."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.processes import finish, run, start
from vpps import config

pytestmark = pytest.mark.host

PACKAGE = Path(config.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))


def reads_of(path: Path) -> list[str]:
    """Where a file reads single variables of the environment: as a whole it may be handed on."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = []
    for node in ast.walk(tree):
        text = ast.unparse(node) if isinstance(node, ast.Call | ast.Subscript) else ""
        if re.match(r"(os\.)?(getenv\(|environb?(\[|\.))", text):
            found.append(f"{path.name}:{node.lineno}: {text}")
    return found


def test_nothing_else_reads_the_environment() -> None:
    assert reads_of(PACKAGE / "config.py")  # so that this test sees what it looks for
    assert [read for path in SOURCES if path != PACKAGE / "config.py" for read in reads_of(path)] == []


def test_every_name_of_a_variable_is_in_the_table() -> None:
    """In messages and docstrings, too."""
    texts = [path.read_text(encoding="utf-8") for path in SOURCES]
    names = {name for text in texts for name in re.findall(r"\bVPPS_[A-Z]+(?:_[A-Z]+)*\b", text)}
    assert names == {v.name for v in config.VARIABLES if v.name.startswith("VPPS_")}


def test_the_table_says_what_each_is_for() -> None:
    names = [variable.name for variable in config.VARIABLES]
    assert len(set(names)) == len(names)
    assert {"VPPS_CACHE_DIR", "VPPS_CACHE_SIZE", "VPPS_TARGET", "VPPS_LOG", "CXX"} <= set(names)
    assert all(variable.doc for variable in config.VARIABLES)


LOGS = """
    import vpps, logging
    logging.getLogger("vpps.kernel").info("for your information")
    logging.getLogger("vpps.kernel").warning("be careful")
    logging.getLogger("others").info("not ours")
"""


class TestLog:
    @pytest.mark.parametrize(
        "level, lines", [("", 1), ("error", 0), ("warning", 1), ("info", 2), ("INFO", 2), ("debug", 2)]
    )
    def test_goes_to_standard_error_from_a_level_on(self, level: str, lines: int) -> None:
        status, out, err = finish(start(LOGS, {"VPPS_LOG": level}))
        assert (status, out) == (0, "")
        assert len(err.splitlines()) == lines, err
        assert ("vpps.kernel: for your information" in err) == (lines == 2)

    def test_of_a_program_that_sets_up_logging_is_its_own(self) -> None:
        code = "import logging, sys; logging.basicConfig(stream=sys.stdout)\n"
        status, out, err = finish(
            start(code + "\n".join(line.strip() for line in LOGS.splitlines()), {"VPPS_LOG": "info"})
        )
        assert (status, err) == (0, "")
        assert len(out.splitlines()) == 2, out

    def test_of_an_unknown_level_is_a_warning(self) -> None:
        status, _, err = finish(start("import vpps", {"VPPS_LOG": "loud"}))
        assert status == 0
        assert "VPPS_LOG=loud: expected debug, info, warning or error" in err


def test_a_user_without_a_home_has_a_cache() -> None:
    code = """
        import os
        from pathlib import Path
        from vpps import config

        def no_home():
            raise RuntimeError("Could not determine home directory.")

        Path.home = no_home
        print(config.cache_dir().name == f"vpps-cache-{os.getuid()}")
    """
    assert run(code, {"VPPS_CACHE_DIR": "", "XDG_CACHE_HOME": ""}) == "True\n"
