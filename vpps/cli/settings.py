"""Turns a task's settings into a command's options."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer

from vpps.errors import CheckpointError, ModelError
from vpps.zoo.task import Settings


def parameters_of(settings_type: type[Settings]) -> list[inspect.Parameter]:
    """Return one Typer option per setting, as function parameters. Raises ModelError if a setting has no default."""
    types = get_type_hints(settings_type)
    return [_parameter(field, types[field.name]) for field in fields(settings_type)]


def fields_from(options: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that belong to an options dataclass's fields; ignore all others.

    The values come from a command's context or from a checkpoint.

    Raises:
        CheckpointError: the option does not accept a value.
    """
    types = get_type_hints(options, include_extras=True)
    found: dict[str, Any] = {}
    for field in fields(options):
        if field.name not in values:
            continue
        value, default = values[field.name], field.default
        kind, least = types[field.name], field.metadata.get("min")
        if get_origin(kind) is Annotated:
            kind, *declared = get_args(kind)
            least = getattr(declared[0], "min", None)
        is_default = type(value) is type(default) and value == default  # may contradict the type: limit: int = None
        found[field.name] = value if is_default else _as(kind, value, field.name)
        if least is not None and not is_default and value is not None and not found[field.name] >= least:
            raise _no_option(field.name, value)
    return found


def keyword(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    """Return an option as a keyword-only parameter."""
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


def _as(kind: Any, value: Any, name: str) -> Any:
    """Convert a stored value to the type of an option. Values of unusual types stay as they are stored.

    Raises:
        CheckpointError: the value has the wrong type.
    """
    for type_ in get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,):
        if not isinstance(type_, type) or not issubclass(type_, bool | int | float | str | NoneType | Path | Enum):
            return value
        if isinstance(value, (int, float) if type_ is float else type_) and (
            type_ is bool or not isinstance(value, bool)
        ):
            return value
        if issubclass(type_, Path) and isinstance(value, str):
            return type_(value)
        if issubclass(type_, Enum) and any(value == member.value for member in type_):
            return type_(value)
    raise _no_option(name, value)


def _no_option(name: str, value: Any) -> CheckpointError:
    return CheckpointError(f"damaged: {name.replace('_', '-')} is {value!r}")
