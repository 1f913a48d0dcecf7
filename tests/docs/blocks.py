"""Runs the code blocks of a documentation page in order.

Languages of fences:

    python    runs; all blocks of a page share one namespace.
    {literalinclude} PROGRAM.py    a separate program; from then on it is in the working directory.
    output    the output of the Python block before it.
    console   lines after `$ ` are shell commands, the others their output, errors included; compile notices are left
              out.
    text, json   is not run: data, formulas, messages.

Comparisons of outputs treat runs of white space as one blank; `...` matches anything (`0....` a number below one). A
comment before a fence marks exceptions:

    <!-- not run: a GPU -->        the reason why it is not run
    <!-- needs: torch -->          it runs if that module is installed
    <!-- raises: ShapeError -->    it ends with that exception, whose message is the last line of its output
    <!-- exits: 1 -->              its last command ends with that status
    <!-- numbers: vary -->         any number in its output stands for any other: times, addresses, and numbers that
                                   depend on the instruction set or the number of cores

`python -m tests.docs.blocks PAGE` runs a page in the working directory, which should be an empty one. It exits with
status 1 at the first block that differs from the page. With `--update`, it writes the new outputs into the page.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

RUN = ("python", "console")
INCLUDE = "{literalinclude}"
SHOWN = ("output", "text", "json")
MARKS = ("not run", "needs", "raises", "exits", "numbers")
NUMBER = re.compile(r"0x[0-9a-f]+|\d(?:[\d,.]*\d)?(?:e[+-]?\d+)?|─+")  # rules under table heads vary as well


class PageError(Exception):
    """Raised if a page's blocks are malformed, or differ from the page."""


class Difference(PageError):
    """Raised if an output differs from the page.

    Attributes:
        line: line of the output's fence.
        text: the correct text between the fences.
    """

    def __init__(self, message: str, line: int, text: str) -> None:
        super().__init__(message)
        self.line, self.text = line, text


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block.

    Attributes:
        page: file of the page.
        line: line of the fence, from 1.
        language: text after the fence.
        text: text between the fences.
        output: for Python, the output in the following block; None without such a block.
        output_line: line of the output block's fence.
        marks: marks from the comments before the block, by name.
    """

    page: Path
    line: int
    language: str
    text: str
    output: str | None = None
    output_line: int = 0
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def where(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def is_run(self) -> bool:
        """Return True if the block can run here."""
        needs = self.marks.get("needs")
        return "not run" not in self.marks and (needs is None or _is_installed(needs))

    def compare(self, expected: str, printed: str, text: str) -> None:
        """Raise Difference, with the correct text between the fences, if the outputs differ."""
        if self.marks.get("numbers") == "vary":
            wanted, found = NUMBER.sub("#", expected), NUMBER.sub("#", printed)
        else:
            wanted, found = expected, printed
        pieces = re.split(r" ?\.{3}(?!\.) ?", " ".join(wanted.split()))
        if re.fullmatch(r"(?s:.*?)".join(map(re.escape, pieces)), " ".join(found.split())) is None:
            message = f"{self.where}: the page says\n{expected}\nbut it printed\n{printed}"
            raise Difference(message, self.output_line or self.line, text)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even its parent package exists
        return False


def blocks_of(page: Path) -> list[Block]:
    """Return all blocks to run. Raises PageError for unknown fences and marks."""
    found: list[Block] = []
    marks: dict[str, str] = {}
    for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
        if token.type == "html_block":
            marks.update(_marks(token.content, page))
            continue
        if token.type != "fence":
            continue
        line = token.map[0] + 1 if token.map else 0
        language = token.info.strip()
        block = Block(page, line, language, token.content, marks=marks)
        marks = {}
        if language == "output":
            if not found or found[-1].language != "python" or found[-1].output is not None:
                raise PageError(f"{block.where}: an output follows no block of Python")
            found[-1] = replace(found[-1], output=token.content, output_line=line)
        elif language in RUN or language.startswith(INCLUDE):
            found.append(block)
        elif language not in SHOWN and not re.fullmatch(r"\{[\w-]+\}.*", language):
            raise PageError(f"{block.where}: {language!r} is none of {', '.join(RUN + SHOWN)}")
        elif language.startswith("{code"):
            raise PageError(f"{block.where}: write ```python, so that it is run")
    return found


def _marks(comment: str, page: Path) -> Iterator[tuple[str, str]]:
    for name, value in re.findall(r"<!-- ([a-z ]+): (.*?) -->", comment):
        if name not in MARKS:
            raise PageError(f"{page.name}: <!-- {name}: ... -->: expected one of {', '.join(MARKS)}")
        yield name, value


def run_page(page: Path) -> None:
    """Run the page's blocks in order, in the working directory. Raises PageError if one differs from the page."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(page):
        if not block.is_run:
            if block.language == "python":
                compile(block.text, block.where, "exec")
        elif block.language == "console":
            _run_console(block)
        elif block.language.startswith(INCLUDE):
            shutil.copy(page.parent / block.language.removeprefix(INCLUDE).strip(), ".")
        else:
            _run_python(block, namespace)


def _run_python(block: Block, namespace: dict[str, Any]) -> None:
    # Empty lines replace the page's earlier lines, so that tracebacks show the page's line numbers.
    code = compile("\n" * block.line + block.text, str(block.page), "exec", dont_inherit=True)
    printed = io.StringIO()
    expected = block.marks.get("raises")
    with contextlib.redirect_stdout(printed):
        try:
            exec(code, namespace)
        except Exception as error:
            if type(error).__name__ != expected:
                raise PageError(f"{block.where}: {traceback.format_exc()}{printed.getvalue()}") from None
            print(f"{expected}: {error}")
        else:
            if expected is not None:
                raise PageError(f"{block.where}: raised no {expected}")
    if block.output is not None:
        block.compare(block.output, printed.getvalue(), printed.getvalue())


# vpps-train's notice if the cache is empty.
_COMPILING = re.compile(r"^compiling [\w ]+, once: .*\n", re.MULTILINE)


def _run_console(block: Block) -> None:
    commands = _commands(block)
    for at, (command, output) in enumerate(commands):
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            env={**os.environ, "PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"},
        )
        printed = _COMPILING.sub("", done.stdout)
        expected = int(block.marks.get("exits", 0)) if at == len(commands) - 1 else 0
        if done.returncode != expected:
            raise PageError(f"{block.where}: status {done.returncode} of\n{command}\n{done.stdout}")
        if output:
            kept = "".join(f"$ {c}\n{o}" for c, o in commands[:at])
            rest = "".join(f"$ {c}\n{o}" for c, o in commands[at + 1 :])
            block.compare(output, printed, f"{kept}$ {command}\n{printed}{rest}")


def _commands(block: Block) -> list[tuple[str, str]]:
    """Return the commands and their outputs."""
    found: list[tuple[str, str]] = []
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        match = re.match(r"((?:[^\n]*\\\n)*[^\n]*)\n?(.*)", part, flags=re.DOTALL)
        assert match is not None
        found.append((match[1], match[2]))
    if not found:
        raise PageError(f"{block.where}: no line begins with '$ '")
    return found


def update(page: Path) -> None:
    """Write differing outputs into a page."""
    while True:
        try:
            run_page(page)
            return
        except Difference as difference:
            lines = page.read_text(encoding="utf-8").split("\n")
            end = lines.index("```", difference.line)
            text = [line.rstrip() for line in difference.text.rstrip("\n").split("\n")]
            page.write_text("\n".join(lines[: difference.line] + text + lines[end:]), encoding="utf-8")
            print(f"{page.name}:{difference.line} updated")


if __name__ == "__main__":
    try:
        (update if "--update" in sys.argv else run_page)(Path(sys.argv[1]))
    except PageError as error:
        sys.exit(str(error))
