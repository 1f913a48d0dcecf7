"""Machines of policy `fsm` (planner/native/automaton.py) in the tuning database: a file for each recurrence.

What cannot be read is as good as absent: a machine is learned anew then.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vpps.errors import CompileError
from vpps.kernel.cache import key_of
from vpps.kernel.cache.places import ADVICE
from vpps.locks import LOCK, held, sweep
from vpps.planner.native.automaton import Automaton, Learned, LearningSettings
from vpps.planner.policies.knowledge import Digests
from vpps.tuning.database import is_switched_on, now
from vpps.tuning.files import is_private, make_private, replace_file, tuning_folder

_log = logging.getLogger(__name__)

FORMAT = 1
PREFIX = "machine-"
"""Of the names of its files, beside those of measured choices."""

_PATIENCE = 2.0  # seconds to wait for another process that writes the same file


@dataclass(frozen=True, slots=True)
class KeptMachine:
    """A file of a machine, as it is listed.

    Attributes:
        path: of the file.
        names: of the cells.
        machine: it.
        batches, lower_bound: of the graph that it was learned from.
        when: ISO 8601, UTC, to the second.
    """

    path: Path
    names: tuple[str, ...]
    machine: Automaton
    batches: int
    lower_bound: int
    when: str


class MachineFiles:
    """The machines in the tuning database's folder; none are found or kept where VPPS_TUNING says so.

    Args:
        folder: default: that of the cache directory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    @property
    def folder(self) -> Path:
        """Where they are."""
        return tuning_folder() if self._folder is None else self._folder

    def path_of(self, digests: Digests) -> Path:
        """The file of a recurrence."""
        return self.folder / f"{PREFIX}{key_of(*digests)}.json"

    def find(self, digests: Digests) -> Automaton | None:
        """See Kept."""
        path = self.path_of(digests)
        if not is_switched_on():
            return None
        try:
            if not is_private(self.folder) or not is_private(path):
                _log.warning("%s is not used: other users own it or may write to it", path)
                return None
            return _read(path, digests).machine
        except FileNotFoundError:
            return None
        except _DAMAGE as error:
            _log.warning("%s is damaged and not used: %r", path, error)
            return None

    def keep(self, digests: Digests, names: Sequence[str], learned: Learned, settings: LearningSettings) -> None:
        """See Kept."""
        if not is_switched_on():
            return
        try:
            self.store(digests, names, learned, settings)
        except CompileError as error:  # whoever learns it again loses time, no more
            _log.warning("what was learned about batches is not kept: %s", error)

    def store(self, digests: Digests, names: Sequence[str], learned: Learned, settings: LearningSettings) -> Path:
        """Keep a machine in place of what there is for the recurrence; returns the file.

        Raises:
            CompileError: the directory cannot be used; says why and what to do.
        """
        make_private(self.folder)
        path = self.path_of(digests)
        sweep(self.folder)
        facts = asdict(learned)
        del facts["machine"]
        record = {
            "format": FORMAT, "cells": digests, "names": tuple(names), "when": now(), "settings": asdict(settings),
            "learned": facts, "machine": learned.machine.as_json(),
        }  # fmt: skip
        try:
            with held([path.with_suffix(LOCK)], _PATIENCE):
                replace_file(path, json.dumps(record) + "\n")
        except OSError as error:
            raise CompileError(f"the tuning database {self.folder} cannot be written ({error}); {ADVICE}") from error
        return path


def machine_in(path: Path) -> KeptMachine | None:
    """What a file of a machine holds; None where it is damaged, or of another version, and thus not used."""
    try:
        return _read(path, None)
    except _DAMAGE:
        return None


_DAMAGE = OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError


def _read(path: Path, digests: Digests | None) -> KeptMachine:
    """Raises what `_DAMAGE` says.

    Args:
        digests: of the recurrence that it must be of; None for any.
    """
    kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if kept["format"] != FORMAT:
        raise ValueError("of another version of vpps")
    if digests is not None and tuple(kept["cells"]) != digests:
        raise ValueError("of other cells")
    learned = kept["learned"]
    return KeptMachine(
        path,
        tuple(map(str, kept["names"])),
        Automaton.from_json(kept["machine"], len(kept["cells"])),
        int(learned["batches"]),
        int(learned["lower_bound"]),
        str(kept["when"]),
    )
