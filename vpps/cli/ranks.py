"""Reports a message from several ranks only once, even before a world exists; most are usage errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from vpps.distributed import World, init
from vpps.distributed.launcher import launcher
from vpps.errors import DistributedError

TIMEOUT = 10.0
"""Seconds that ranks wait for each other to choose the rank that reports an error. After that, each reports it."""

_UsageError: Any = typer.BadParameter.__base__
"""UsageError of Click, or of Typer's own copy of Click."""


class RankedGroup(TyperGroup):
    """A group of commands that reports usage errors once."""

    def make_context(self, *args: Any, **more: Any) -> Any:
        return _said_once(super().make_context, *args, **more)

    def invoke(self, ctx: Any) -> Any:
        return _said_once(super().invoke, ctx)


class RankedCommand(TyperCommand):
    """A single command that reports usage errors once."""

    def make_context(self, *args: Any, **more: Any) -> Any:
        return _said_once(super().make_context, *args, **more)

    def invoke(self, ctx: Any) -> Any:
        return _said_once(super().invoke, ctx)


def _said_once(call: Callable[..., Any], *args: Any, **more: Any) -> Any:
    try:
        return call(*args, **more)
    except _UsageError as error:
        if says_another(error, error.format_message()):
            raise typer.Exit(error.exit_code) from None
        raise


def says_another(error: BaseException, text: str) -> bool:
    """Return True if a lower rank reports the same error, which prevented the world from being created."""
    if not isinstance(error, Exception):  # every rank receives Ctrl-C itself
        return False
    try:
        return launcher() != "alone" and init(timeout=TIMEOUT).fails_alike(text)
    except DistributedError:
        return False


@contextmanager
def warnings_once(world: World) -> Iterator[None]:
    """Collect warnings; at the end, only the first rank with a warning shows it. After an error, show them at once."""
    found, said = list[warnings.WarningMessage](), list[list[str]]()
    try:
        with warnings.catch_warnings(record=True) as found:
            yield
        said = world.gather([str(warning.message) for warning in found])[: world.rank]
    finally:
        for warning in found:
            if not any(str(warning.message) in texts for texts in said):
                warnings.showwarning(warning.message, warning.category, warning.filename, warning.lineno)
