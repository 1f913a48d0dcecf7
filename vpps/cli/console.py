"""What all commands share: a console that is plain in a pipe, exit codes, how an app of commands behaves."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console

from vpps.errors import VppsError

PIPE_WIDTH = 1000
"""Columns of a pipe or file: a line is a line there."""


def app_named(name: str) -> typer.Typer:
    """An app of commands, as all of ours behave."""
    return typer.Typer(
        name=name, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich"
    )


def plain_console() -> Console:
    """Standard output. In a file or a pipe there are no colours and no animation, whatever the environment asks for."""
    width, terminal = (None, None) if sys.stdout.isatty() else (PIPE_WIDTH, False)
    return Console(force_terminal=terminal, width=width, highlight=False, markup=False, emoji=False)


def bytes_text(count: float) -> str:
    """A number of bytes to three digits, "413 KB"."""
    units = iter(("B", "KB", "MB", "GB"))
    unit = next(units)
    while count >= 1000 and unit != "GB":
        count, unit = count / 1000, next(units)
    return f"{count:.3g} {unit}"


@contextmanager
def exit_codes(program: str) -> Iterator[None]:
    """Turns a VppsError into one sentence and exit code 1, Ctrl-C into one and exit code 130 (128 + SIGINT).

    Warnings become a sentence as well, without the line of our code that gave it.
    """

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        print(f"{program}: {message}", file=sys.stderr)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = show
            yield
    except VppsError as error:
        print(f"{program}: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    except KeyboardInterrupt as interrupt:
        print(f"{program}: interrupted {interrupt}".rstrip(), file=sys.stderr)
        raise typer.Exit(130) from None
