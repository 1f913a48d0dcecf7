"""Parses the lines of workloads.py, for figures and tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workers import FORMS

BENCH, MEMORY = "workloads", "workloads_memory"
TUNED = {form.shown for form in FORMS.values() if form.tuned}


@dataclass
class Case:
    """The measurements of a task at one batch size.

    Attributes:
        task, mode, batch: as in the command.
        settings: the case's other words: sizes, cores, threads.
        vpps: examples/s.
        peers: (examples/s, ratio) by name.
        skipped: reasons for missing figures, by peer name.
    """

    task: str
    mode: str
    batch: int
    settings: Mapping[str, str]
    vpps: float = 0.0
    peers: dict[str, tuple[float, float]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def hidden(self) -> int:
        """Return the size of the model; 0 if it has no such setting."""
        return int(self.settings.get("hidden", 0))

    def best_ratio(self, tuned: bool) -> float | None:
        """Return the ratio to the best of the peers as shipped, or of all peers."""
        ratios = [ratio for name, (_, ratio) in self.peers.items() if tuned or name not in TUNED]
        return min(ratios, default=None)

    def rates(self) -> dict[str, float]:
        """Return examples/s by name, vpps first."""
        own = {"vpps": self.vpps} if self.vpps else {}
        return own | {name: rate for name, (rate, _) in self.peers.items()}


@dataclass(frozen=True)
class Memory:
    """MB that training adds: for vpps, and for a peer."""

    task: str
    mode: str
    batch: int
    vpps: float
    peer: str
    peer_value: float


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of this bench in a file."""
    lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line["bench"] in (BENCH, MEMORY)]


def words_of(line: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of a case."""
    return dict(word.split("=", 1) for word in line["case"].split())


def cases_of(lines: Iterable[Mapping[str, Any]]) -> list[Case]:
    """Return every case in the order in which it first appears; if a program has several lines, the last one counts."""
    cases: dict[str, Case] = {}
    for line in lines:
        if line["bench"] != BENCH:
            continue
        words = words_of(line)
        task, mode, batch = words.pop("task"), words.pop("mode"), int(words.pop("batch"))
        case = cases.setdefault(line["case"], Case(task, mode, batch, words))
        if "skipped" in line:
            case.skipped[line["peer"]] = line["skipped"]
        elif line.get("program") == "vpps":
            case.vpps = line["value"]
            if "peer" in line:
                case.peers[line["peer"]] = line["peer_value"], line["ratio"]
    return list(cases.values())


def memory_of(lines: Iterable[Mapping[str, Any]]) -> list[Memory]:
    """Return the results of --memory that have a peer; each case and peer's last line is used."""
    found = {}
    for line in lines:
        if line["bench"] == MEMORY and "peer" in line:
            words = words_of(line)
            found[line["case"], line["peer"]] = Memory(
                words["task"], words["mode"], int(words["batch"]), line["value"], line["peer"], line["peer_value"]
            )
    return list(found.values())
