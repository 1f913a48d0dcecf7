"""The tuning database: which configuration was fastest, per device, model and cells; files in the cache directory.

A file per device, model, version and kind of handle, `tuning/<digest>.json`, holds a record per set of cells and
size of batch.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vpps._version import __version__
from vpps.compiler.schedule import SCHEDULES
from vpps.engine.configuration import Configuration
from vpps.errors import CompileError
from vpps.graph.graph import Graph
from vpps.kernel.cache import key_of
from vpps.model.model import Model
from vpps.model.precisions import ALL_EXACT, Precisions
from vpps.placement.onchip import Device
from vpps.planner.policies import POLICIES
from vpps.record.trace import TracedCell, digest_of
from vpps.runtime.machine import Machine
from vpps.tuning.files import is_switched_on, listed, read, store, tuning_folder
from vpps.tuning.online import Progress

_log = logging.getLogger(__name__)

AUTOTUNE = "autotune"
"""`Tuned.by` of what was found in training."""

REACH = 10.0
"""A record serves batches of up to so many times as many vertices, or as few."""

_MOST = 1e15  # vertices, seconds or a ratio of a record


@dataclass(frozen=True, slots=True)
class Key:
    """What a tuned configuration holds for.

    Attributes:
        device: processor or GPU, in words, with what of it may be used.
        model: digest of names, shapes, kinds and precisions of the parameters.
        version: of vpps.
        train: of a handle that trains, or of one that only evaluates.
        cells: digests of the programs of the graph's cells.
    """

    device: str
    model: str
    version: str
    train: bool
    cells: frozenset[str]

    @property
    def file_name(self) -> str:
        """Of all records but for their cells."""
        return key_of(self.device, self.model, self.version, str(self.train)) + ".json"


@dataclass(frozen=True, slots=True)
class Tuned:
    """A configuration that was measured.

    Attributes:
        configuration: the fastest one.
        seconds: per batch with it, median.
        ratio: time of the default configuration over that; of the first one, where it was found in training.
        vertices: of a typical batch that it was measured with.
        when: ISO 8601, UTC, to the second.
        by: what measured it, such as "vpps-profile".
    """

    configuration: Configuration
    seconds: float
    ratio: float
    vertices: int
    when: str
    by: str

    def as_json(self) -> dict[str, Any]:
        """For files and programs."""
        return asdict(self) | {"configuration": self.configuration.as_json()}

    def describe(self) -> str:
        """One line, such as "vps 2 (by vpps-profile on 2026-11-22, 1.13x the default)"."""
        than = "what it began with" if self.by == AUTOTUNE else "the default"
        gain = f"{self.ratio:.2f}x {than}" if self.ratio else f"{than} does not run"
        return f"{self.configuration.describe()} (by {self.by} on {self.when[:10]}, {gain})"


@dataclass(frozen=True, slots=True)
class StoredChoice:
    """A record of the database, as it is listed.

    Attributes:
        path: of its file.
        device, version, train: as of `Key`.
        tuned: what was measured.
    """

    path: Path
    device: str
    version: str
    train: bool
    tuned: Tuned


def choices_in(path: Path) -> list[StoredChoice] | None:
    """All records of a file of the database; None where it is damaged, or of another version, and thus not used."""

    def parse(kept: Any) -> list[StoredChoice]:
        key = kept["key"]
        facts = str(key["device"]), str(key["version"]), bool(key["train"])
        return [StoredChoice(path, *facts, tuned) for _, tuned in _records(kept)]

    return listed(path, parse)


def now() -> str:
    """As `Tuned.when` has it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def tuned_for(model: Model, graph: Graph, machine: Machine, train: bool, precisions: Precisions) -> Tuned | None:
    """What the database in the cache directory has for a graph, unless VPPS_TUNING switches it off."""
    return tuned_on(model, graph, lambda: device_name(machine), train, precisions)


def tuned_on(
    model: Model, graph: Graph, device: Callable[[], str], train: bool, precisions: Precisions
) -> Tuned | None:
    """The same without a machine.

    Args:
        device: gives its name, see `device_called`; asked for where there is a database.
        precisions: of products with parameters.
    """
    database = TuningDatabase()
    if not is_switched_on() or not os.path.isdir(database.folder):
        return None
    return database.lookup(key_for(model, graph.blocks, device(), train, precisions), len(graph))


def keep(model: Model, cells: Iterable[TracedCell], machine: Machine, progress: Progress) -> None:
    """Store what tuning in training has found, unless VPPS_TUNING says not to.

    Args:
        cells: of all graphs that were trained.
    """
    if not is_switched_on() or not progress.seconds:
        return
    vertices, seconds = progress.vertices, progress.seconds * progress.vertices
    tuned = Tuned(progress.best, seconds, progress.ratio, vertices, now(), AUTOTUNE)
    try:
        key = key_for(model, cells, device_name(machine), True, progress.best.precision)
        TuningDatabase().store(key, tuned)
    except CompileError as error:  # training goes on
        _log.warning("what tuning has found is not kept: %s", error)


def key_for(
    model: Model, cells: Iterable[TracedCell], device: str, train: bool, precisions: Precisions = ALL_EXACT
) -> Key:
    """The key of a model on a device, for graphs of these cells.

    Args:
        device: see `device_name`.
        precisions: of products with the parameters.
    """
    signature = sorted((p.name, p.shape, type(p).__name__, p.trainable, precisions.of(p).name) for p in model)
    return Key(device, key_of(repr(signature)), __version__, train, frozenset(map(digest_of, cells)))


class TuningDatabase:
    """Records of measured configurations.

    Args:
        folder: where its files are; default: `tuning` in the cache directory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = tuning_folder() if folder is None else folder

    def lookup(self, key: Key, vertices: int) -> Tuned | None:
        """The record for these cells, or more, whose batches are the nearest in size; None where there is none within
        `REACH`. Costs less than a millisecond."""
        records = read(self.folder / key.file_name, _records) or []
        found = [record for cells, record in records if cells >= key.cells]

        def distance(tuned: Tuned) -> float:
            return abs(math.log(max(tuned.vertices, 1) / max(vertices, 1)))

        best = min(found, key=distance, default=None)
        return None if best is None or distance(best) > math.log(REACH) else best

    def store(self, key: Key, tuned: Tuned) -> Path:
        """Keep a record, in place of what there is for these cells and batches of that size (to a quarter).

        Returns:
            The file.

        Raises:
            CompileError: the directory cannot be used; says why and what to do.
        """
        path = self.folder / key.file_name

        def contents() -> dict[str, Any]:
            kept = [
                (cells, record)
                for cells, record in read(path, _records) or []
                if cells != key.cells or not 0.8 <= record.vertices / max(tuned.vertices, 1) <= 1.25
            ]
            return {
                "key": {"device": key.device, "model": key.model, "version": key.version, "train": key.train},
                "records": [{"cells": sorted(c), **record.as_json()} for c, record in [*kept, (key.cells, tuned)]],
            }

        store(path, contents, indent=1)
        return path


def device_name(machine: Machine) -> str:
    """The device of a machine as keys name it: what of it is used, and what kernels are compiled for."""
    return device_called(machine.target, machine.arch, machine.device)


def device_called(target: str, arch: str, device: Device | None) -> str:
    """The same of a target.

    Args:
        arch: instruction set, of cpu.
        device: the GPU, or the emulated one; None of cpu.
    """
    if device is not None:
        return f"{target}: {device.name}, {device.sms} multiprocessors"
    from vpps.kernel.host_compiler import processor_name
    from vpps.runtime.cores import usable_cores

    return f"{target}: {processor_name()}, {usable_cores()} cores, {arch}"


def _records(kept: Mapping[str, Any]) -> list[tuple[frozenset[str], Tuned]]:
    return [_from_json(record) for record in kept["records"]]


def _from_json(kept: Mapping[str, Any]) -> tuple[frozenset[str], Tuned]:
    """Raises LookupError, TypeError, ValueError, AttributeError: it is none of ours."""
    values = {f.name: kept[f.name] for f in fields(Tuned)}
    values["configuration"] = Configuration.from_json(kept["configuration"])
    tuned = Tuned(**values)
    # Comparisons, as there are numbers that no float can be.
    if not (0 < tuned.vertices < _MOST and 0 <= tuned.seconds < _MOST and 0 <= tuned.ratio < _MOST):
        raise ValueError("a record without sizes or times")
    if not isinstance(tuned.when, str) or not isinstance(tuned.by, str):
        raise TypeError("a record of no day, or by nobody")
    chosen = tuned.configuration
    if chosen.policy not in POLICIES or chosen.schedule not in SCHEDULES:
        raise ValueError(f"a record of an unknown policy or schedule: {chosen.describe()}")
    return frozenset(map(str, kept["cells"])), tuned
