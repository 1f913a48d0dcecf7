"""Automata of policy `fsm` (planner/native/automaton.py) in the tuning database: a file for each recurrence."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vpps.errors import CompileError
from vpps.kernel.cache import key_of
from vpps.planner.native.automaton import Automaton, Learned, LearningSettings
from vpps.planner.policies.knowledge import Digests
from vpps.tuning.files import is_switched_on, listed, read, store, tuning_folder

_log = logging.getLogger(__name__)

PREFIX = "machine-"
"""Of the names of its files, beside those of measured choices."""


@dataclass(frozen=True, slots=True)
class KeptAutomaton:
    """A file of an automaton, as it is listed.

    Attributes:
        path: of the file.
        names: of the cells.
        automaton: it.
        batches, lower_bound: of the graph that it was learned from.
        when: ISO 8601, UTC, to the second.
    """

    path: Path
    names: tuple[str, ...]
    automaton: Automaton
    batches: int
    lower_bound: int
    when: str


class AutomatonFiles:
    """The automata in the tuning database's folder; none are found or kept where VPPS_TUNING says so.

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
        """See KeptAutomata."""

        def parse(kept: Any) -> Automaton:
            if tuple(kept["cells"]) != digests:
                raise ValueError("of other cells")
            return _kept_automaton(path, kept).automaton

        path = self.path_of(digests)
        return read(path, parse) if is_switched_on() else None

    def keep(self, digests: Digests, names: Sequence[str], learned: Learned, settings: LearningSettings) -> None:
        """See KeptAutomata."""
        if not is_switched_on():
            return
        facts = asdict(learned)
        del facts["automaton"]
        record = {
            "cells": digests, "names": tuple(names), "settings": asdict(settings), "learned": facts,
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": learned.automaton.as_json(),
        }  # fmt: skip
        try:
            store(self.path_of(digests), lambda: record)
        except CompileError as error:  # whoever learns it again loses time, no more
            _log.warning("what was learned about batches is not kept: %s", error)


def automaton_in(path: Path) -> KeptAutomaton | None:
    """What a file of an automaton holds; None where it is damaged, or of another version, and thus not used."""
    return listed(path, lambda kept: _kept_automaton(path, kept))


def _kept_automaton(path: Path, kept: Any) -> KeptAutomaton:
    learned, names = kept["learned"], tuple(map(str, kept["names"]))
    automaton = Automaton.from_json(kept["machine"], len(kept["cells"]))
    return KeptAutomaton(
        path, names, automaton, int(learned["batches"]), int(learned["lower_bound"]), str(kept["when"])
    )
