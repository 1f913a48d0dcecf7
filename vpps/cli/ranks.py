"""What all ranks have to say before there is a world is said by one of them: errors of usage, mostly."""

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
"""Seconds that ranks wait for each other to agree on who says what is wrong. Beyond, each says it."""

_UsageError: Any = typer.BadParameter.__base__
"""Click's, or that of Typer's own copy of Click."""


class RankedGroup(TyperGroup):
    """Commands whose errors of usage are said once."""

    def make_context(self, *args: Any, **more: Any) -> Any:
        return _said_once(super().make_context, *args, **more)

    def invoke(self, ctx: Any) -> Any:
        return _said_once(super().invoke, ctx)


class RankedCommand(TyperCommand):
    """The same of a single one."""

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
    """Whether a rank before this one says the same, of an error without which there would be a world."""
    if not isinstance(error, Exception):  # of Ctrl-C each knows by itself
        return False
    try:
        return launcher() != "alone" and init(timeout=TIMEOUT).fails_alike(text)
    except DistributedError:
        return False


@contextmanager
def warnings_once(world: World) -> Iterator[None]:
    """Warnings are given at the end, where all ranks meet, by the first one that has them; at once after an error."""
    found, said = list[warnings.WarningMessage](), list[list[str]]()
    try:
        with warnings.catch_warnings(record=True) as found:
            yield
        said = world.gather([str(warning.message) for warning in found])[: world.rank]
    finally:
        for warning in found:
            if not any(str(warning.message) in texts for texts in said):
                warnings.showwarning(warning.message, warning.category, warning.filename, warning.lineno)
