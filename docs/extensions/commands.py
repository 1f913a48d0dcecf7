"""The command reference, of the Typer apps in vpps/cli: what `--help` says."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any

import typer
from tables import code, table

Record = tuple[str, str]
"""An option or argument as its help shows it, and what it is."""


def markdown(program: str) -> str:
    """All commands of a program, such as vpps-data; what they have in common comes first, once."""
    return "".join(_parts(program))


def _parts(program: str) -> Iterator[str]:
    app = importlib.import_module(f"vpps.cli.{program.removeprefix('vpps-')}").app
    root: Any = typer.main.get_command(app)
    commands: dict[str, Any] = getattr(root, "commands", {})
    yield f"## {program}\n\n"  # what comes before the first heading would end up behind the last section
    yield _prose(root.help or "")
    if not commands:
        yield from _command(root, program, [])
    common = _in_common(list(commands.values()), program)
    if common:
        yield "Options of all commands:\n\n" + table(("option", "meaning"), map(_row, common))
    for name, command in commands.items():
        if not command.hidden:
            yield f"### {program} {name}\n\n"
            yield _prose(command.help or "")
            yield from _command(command, f"{program} {name}", common)
    if commands:
        yield _epilog(root.epilog)


def _command(command: Any, path: str, common: list[Record]) -> Iterator[str]:
    arguments = [p.get_help_record(_context(command, path)) for p in command.params if p.param_type_name == "argument"]
    own = [record for record in _options(command, path) if record not in common]
    pieces = " ".join(command.collect_usage_pieces(_context(command, path)))
    usage = re.sub(r"\{(\w+)(\.*)\}(\.\.\.)?", lambda match: match[1].upper() + (match[2] or match[3] or ""), pieces)
    yield f"```text\n{path} {usage}\n```\n\n"
    if arguments:
        yield table(("argument", "meaning"), map(_row, arguments))
    if own:
        yield table(("option", "meaning"), map(_row, own))
    yield _epilog(command.epilog)


def _context(command: Any, path: str) -> Any:
    return typer.Context(command, info_name=path)


def _options(command: Any, path: str) -> list[Record]:
    context = _context(command, path)
    records = (p.get_help_record(context) for p in command.params if p.param_type_name == "option")
    return [record for record in records if record]


def _in_common(commands: list[Any], program: str) -> list[Record]:
    """Options that are the same in all commands, where there are many of them."""
    if len(commands) < 5:
        return []
    first, *others = (_options(command, program) for command in commands)
    return [record for record in first if all(record in other for other in others)]


_NUMBER = re.compile(r"<(int|float)( range)?>|\b(INTEGER|FLOAT)( RANGE)?\b")
"""How help names the type of an option that takes a number."""


def _row(record: Record) -> tuple[str, str]:
    name, meaning = record
    name = _NUMBER.sub("N", name)
    meaning = re.sub(r"\[default: \((.*?)\)", r"[default: \1", meaning)
    return code(name), _escaped(re.sub(r"\s+\[([^\[\]]*)\]$", r" *(\1)*", meaning))


def _escaped(text: str) -> str:
    return text.replace("<", r"\<").replace(">=", "≥")


def _prose(text: str) -> str:
    return f"{text.strip()}\n\n" if text else ""


def _epilog(text: str | None) -> str:
    """Rich's markup as Markdown; lines that are commands become a block of code."""
    found: list[str] = []
    examples: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text or ""):
        paragraph = " ".join(paragraph.split())
        if paragraph.startswith("vpps-"):
            examples.append(paragraph)
            continue
        found += _block(examples)
        if paragraph:
            found.append(re.sub(r"\[/?bold\]", "**", paragraph).replace("<", r"\<") + "\n\n")
    return "".join([*found, *_block(examples)])


def _block(examples: list[str]) -> list[str]:
    shown = ["```text\n" + "\n".join(examples) + "\n```\n\n"] if examples else []
    examples.clear()
    return shown
