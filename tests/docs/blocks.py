"""The code blocks of a page of the documentation, and running them in order.

What the fences mean:

    python    runs; all blocks of a page share one namespace. Where its first line is a comment that names a file
              (`# calc.py`), it is written to that file instead.
    output    what the block of Python before it prints.
    console   lines after `$ ` are commands of a shell, the others their output, errors included.
    text, json   is not run: data, formulas, messages.

Outputs are compared with runs of white space as one blank; `...` stands for anything
(`0....` for a number below one). A comment before a fence says
what is unusual about it:

    <!-- not run: a GPU -->    why it is not run
    <!-- needs: torch -->      it runs where that module is installed
    <!-- raises: ShapeError --> it ends with that exception, whose message is the last line of its output
    <!-- exits: 1 -->          its last command ends with that status

`python -m tests.docs.blocks PAGE` runs a page in the working directory. It ends with status 1 at the first block that
does not do what the page says.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
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
SHOWN = ("output", "text", "json")
MARKS = ("not run", "needs", "raises", "exits")
FILE = re.compile(r"# (\S+\.py)\n")


class PageError(Exception):
    """A page whose blocks are written wrongly, or do something else than it says."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block.

    Attributes:
        page: its file.
        line: of the fence, from 1.
        language: what follows the fence.
        text: between the fences.
        output: for Python, what the block after it says that it prints; None where there is none.
        marks: what comments before it say, by name.
    """

    page: Path
    line: int
    language: str
    text: str
    output: str | None = None
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def where(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def is_run(self) -> bool:
        """Whether it can be run here."""
        needs = self.marks.get("needs")
        return "not run" not in self.marks and (needs is None or importlib.util.find_spec(needs) is not None)


def blocks_of(page: Path) -> list[Block]:
    """All blocks that are to be run. Raises PageError for fences and marks of another kind."""
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
            found[-1] = replace(found[-1], output=token.content)
        elif language in RUN:
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
    """Run its blocks in order, in the working directory. Raises PageError where one does something else."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(page):
        if not block.is_run:
            if block.language == "python":
                compile(block.text, block.where, "exec")
        elif block.language == "console":
            _run_console(block)
        elif match := FILE.match(block.text):
            Path(match[1]).write_text(block.text, encoding="utf-8")
        else:
            _run_python(block, namespace)


def _run_python(block: Block, namespace: dict[str, Any]) -> None:
    # As many empty lines before as there are in the page: tracebacks then show the page's own lines.
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
        _compare(block, block.output, printed.getvalue())


def _run_console(block: Block) -> None:
    commands = _commands(block)
    for at, (command, output) in enumerate(commands):
        done = subprocess.run(
            ["bash", "-c", command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            env={**os.environ, "PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"},
        )
        expected = int(block.marks.get("exits", 0)) if at == len(commands) - 1 else 0
        if done.returncode != expected:
            raise PageError(f"{block.where}: status {done.returncode} of\n{command}\n{done.stdout}")
        if output:
            _compare(block, output, done.stdout)


def _commands(block: Block) -> list[tuple[str, str]]:
    """Commands and their outputs."""
    found: list[tuple[str, str]] = []
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        match = re.match(r"((?:[^\n]*\\\n)*[^\n]*)\n?(.*)", part, flags=re.DOTALL)
        assert match is not None
        found.append((match[1], match[2]))
    if not found:
        raise PageError(f"{block.where}: no line begins with '$ '")
    return found


def _compare(block: Block, expected: str, printed: str) -> None:
    pattern = r"(?s:.*?)".join(map(re.escape, re.split(r"\.{3}(?!\.)", " ".join(expected.split()))))
    if re.fullmatch(pattern, " ".join(printed.split())) is None:
        raise PageError(f"{block.where}: the page says\n{expected}\nbut it printed\n{printed}")


if __name__ == "__main__":
    try:
        run_page(Path(sys.argv[1]))
    except PageError as error:
        sys.exit(str(error))
