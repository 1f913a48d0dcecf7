"""`vpps-cache list --tuning`: the configurations that were measured, and are used by handles."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from vpps.cli.console import plain_console, table_of
from vpps.kernel.cache import inventory
from vpps.tuning.database import AUTOTUNE, StoredChoice, choices_in
from vpps.tuning.machines import PREFIX, KeptMachine, machine_in


def list_choices(as_json: bool) -> None:
    """Print every record of the tuning database, and the files that are not used."""
    paths = inventory.tuning()
    machines = {path: machine_in(path) for path in paths if path.name.startswith(PREFIX)}
    found = {path: choices_in(path) for path in paths if path not in machines}
    choices = [choice for of_file in found.values() for choice in of_file or ()]
    if as_json:
        learned = [_machine_as_json(machine) for machine in machines.values() if machine is not None]
        print(json.dumps([*(_as_json(choice) for choice in choices), *learned]))
        return
    if not paths:
        print(f"no measured choices in {inventory.summary().directory}")
        return
    if choices:
        headings = ("device", "for", "vertices", "ms/batch", "configuration", "gain", "by", "when", "vpps")
        text = {*headings} - {"vertices", "ms/batch", "gain"}
        plain_console().print(table_of(headings, map(_row, choices), left=text))
    _list_machines([machine for machine in machines.values() if machine is not None])
    for path, of_file in (found | machines).items():
        if of_file is None:
            print(f"{path}: damaged, or of another version of vpps; it is not used")


def _list_machines(machines: Sequence[KeptMachine]) -> None:
    if not machines:
        return
    rows = [
        (", ".join(kept.names), *map(str, (len(kept.machine.table), kept.batches, kept.lower_bound)), kept.when)
        for kept in machines
    ]
    headings = ("machine for batches of", "states", "batches", "lower bound", "when")
    plain_console().print(table_of(headings, rows, left=(headings[0], "when")))


def _machine_as_json(kept: KeptMachine) -> dict[str, Any]:
    return {
        "cells": list(kept.names), "states": len(kept.machine.table), "batches": kept.batches,
        "lower_bound": kept.lower_bound, "when": kept.when, "path": str(kept.path),
    }  # fmt: skip


def _row(choice: StoredChoice) -> tuple[str, ...]:
    tuned = choice.tuned
    than = "the first" if tuned.by == AUTOTUNE else "the default"
    return (
        choice.device,
        "training" if choice.train else "evaluation",
        str(tuned.vertices),
        f"{1e3 * tuned.seconds:.3f}",
        tuned.configuration.describe(),
        f"{tuned.ratio:.2f}x {than}" if tuned.ratio else f"{than} does not run",
        tuned.by,
        tuned.when,
        choice.version,
    )


def _as_json(choice: StoredChoice) -> dict[str, Any]:
    tuned = choice.tuned
    return {
        "device": choice.device,
        "train": choice.train,
        "vertices": tuned.vertices,
        "seconds": tuned.seconds,
        "configuration": tuned.configuration.as_json(),
        "ratio": tuned.ratio,
        "by": tuned.by,
        "when": tuned.when,
        "version": choice.version,
        "path": str(choice.path),
    }
