"""Helpers for all commands: a console that is plain in a pipe, exit codes, and the settings of a command app."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from typer.core import TyperGroup

from vpps._version import __version__
from vpps.errors import VppsError

PIPE_WIDTH = 1000
"""Columns of a pipe or file; wide enough that no line wraps."""


def app_named(name: str, cls: type[TyperGroup] | None = None) -> typer.Typer:
    """Return a command app with the settings that all programs share."""
    return typer.Typer(
        name=name,
        cls=cls,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )


def _say_version(asked: bool) -> None:
    if asked:
        print(f"vpps {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", is_eager=True, callback=_say_version, help="Show the version and exit.")
]
"""An option of every program."""


def plain_console(quiet: bool = False) -> Console:
    """Return a console for standard output. A file or pipe gets no colours or animation, whatever the environment says.

    Args:
        quiet: write nothing.
    """
    width, terminal = (None, None) if sys.stdout.isatty() else (PIPE_WIDTH, False)
    return Console(force_terminal=terminal, width=width, highlight=False, markup=False, emoji=False, quiet=quiet)


@contextmanager
def exit_codes(program: str, says_another: Callable[[BaseException, str], bool] | None = None) -> Iterator[None]:
    """Turn a VppsError or MemoryError into a message and exit code 1, and Ctrl-C into a message and exit code 130.

    130 is 128 + SIGINT. Warnings are printed as messages too, without the source line that raised them.

    Args:
        says_another: returns True if another process reports this error.
    """

    def end(error: BaseException, text: str, status: int) -> NoReturn:
        if says_another is None or not says_another(error, text):
            print(f"{program}: {text}", file=sys.stderr)
        raise typer.Exit(status) from None

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        print(f"{program}: {message}", file=sys.stderr)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = show
            yield
    except VppsError as error:
        end(error, str(error), 1)
    except MemoryError as error:
        end(error, f"there is not enough memory ({error}): take a smaller network or batch", 1)
    except KeyboardInterrupt as interrupt:
        end(interrupt, f"interrupted {interrupt}".rstrip(), 130)
