"""A task's settings as options of a command."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from vpps.errors import ModelError
from vpps.zoo.task import Settings


def parameters_of(settings_type: type[Settings]) -> list[inspect.Parameter]:
    """Of a function that Typer makes a command of: an option per setting. Raises ModelError: one has no default."""
    types = get_type_hints(settings_type)
    return [_parameter(field, types[field.name]) for field in fields(settings_type)]


def settings_from(settings_type: type[Settings], values: Mapping[str, Any]) -> Settings:
    """Settings from values by name, as options or a checkpoint have them; others are left out."""
    types = get_type_hints(settings_type)
    names = types.keys() & values.keys()
    return settings_type(**{name: _as(types[name], values[name]) for name in names})


def keyword(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    """An option of a command."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _parameter(field: Field[Any], kind: Any) -> inspect.Parameter:
    name = field.name
    if field.default is MISSING:
        raise ModelError(f"setting {name!r} has no default; write {name}: ... = setting(default, 'what it is for')")
    declared = [f"--{name.replace('_', '-')}"] if kind is bool and not field.default else []
    option = typer.Option(
        *declared, help=field.metadata.get("help"), min=field.metadata.get("min"),
        show_default="synthetic data" if kind == Path | None else True, resolve_path=Path in (kind, *get_args(kind)),
        rich_help_panel="Data and network",
    )  # fmt: skip
    return keyword(name, field.default, Annotated[kind, option])


def _as(kind: Any, value: Any) -> Any:
    """A setting, from how a checkpoint keeps it (`as_kept`)."""
    if not isinstance(value, str):
        return value
    for type_ in (kind, *get_args(kind)):  # of `Path | None`, for example
        if isinstance(type_, type) and issubclass(type_, Path | Enum):
            return type_(value)
    return value
