"""Runs `vpps-train` in the test process, which saves a second per run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import safe_open
from typer.testing import CliRunner

from vpps.cli.train import app

EPOCH = re.compile(r"epoch (\d+)/\d+  loss (\d+\.\d{4}) per \w+((?:  [\w ]+ \d+\.\d{3})+)  \d+ examples/s")


def vpps_train(name: str, *flags: str, **options: Any) -> tuple[int, str, str]:
    """Return a command's exit code, output and error output."""
    arguments = [name, *flags]
    for option, value in options.items():
        arguments += [f"--{option.replace('_', '-')}", str(value)]
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


class Epoch(NamedTuple):
    """A line of output, without the speed."""

    number: int
    loss: float
    scores: dict[str, float]


def epochs(name: str, *flags: str, **options: Any) -> list[Epoch]:
    """Return the epochs' lines, after the heading, of a run that must succeed."""
    code, out, err = vpps_train(name, *flags, **options)
    assert code == 0, err
    found = []
    for line in out.splitlines()[1:]:
        match = EPOCH.fullmatch(line)
        assert match, line
        scores = dict(item.rsplit(" ", 1) for item in match[3].split("  ")[1:])
        found.append(Epoch(int(match[1]), float(match[2]), {name: float(score) for name, score in scores.items()}))
    return found


def contents(checkpoint: Path) -> tuple[dict[str, str], dict[str, bytes]]:
    """Return the metadata, and the bytes of every array."""
    with safe_open(checkpoint, framework="numpy") as file:
        return file.metadata(), {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118
