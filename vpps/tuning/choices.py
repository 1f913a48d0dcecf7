"""Stores the fastest candidates by device, model, version and kind of handle, in one JSON file that handles read.

The file is optional: unreadable contents are treated as absent. If two processes write at once, a choice may be lost.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vpps._version import __version__
from vpps.config import TUNING, cache_dir
from vpps.files import replacing
from vpps.kernel.cache import key_of
from vpps.kernel.host_compiler import processor_name
from vpps.model.model import Model
from vpps.model.precisions import Precisions
from vpps.runtime.cores import usable_cores
from vpps.runtime.machine import Machine
from vpps.tuning.candidates import Candidate

_log = logging.getLogger(__name__)

_DAMAGE = OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError


@dataclass(frozen=True, slots=True)
class Key:
    """Key of a choice.

    Attributes:
        device: description of the processor or GPU, and of the part in use.
        model: names, shapes, kinds and precisions of the parameters.
        train: True for a handle that trains, False for one that only evaluates.
    """

    device: str
    model: str
    train: bool

    @property
    def digest(self) -> str:
        """The key's name in the file."""
        return key_of(self.device, self.model, __version__, str(self.train))


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest candidate.

    Attributes:
        ratio: the default's time divided by the candidate's time.
        by: the program that measured it, such as "vpps-profile".
    """

    candidate: Candidate
    ratio: float
    by: str

    def describe(self) -> str:
        """Describe the choice, such as "vps 2 (by vpps-profile, 1.13x the default)"."""
        gain = f", {self.ratio:.2f}x the default" if self.candidate.changes else ""
        return f"{self.candidate.describe()} (by {self.by}{gain})"


def key_for(model: Model, machine: Machine, train: bool, precisions: Precisions) -> Key:
    """Return the key of a model on a machine."""
    signature = sorted((p.name, p.shape, type(p).__name__, p.trainable, precisions.of(p).name) for p in model)
    gpu = machine.device
    device = f"{gpu.name}, {gpu.sms} multiprocessors" if gpu is not None else ""
    device = device or f"{processor_name()}, {usable_cores()} cores, {machine.arch}"
    return Key(f"{machine.target}: {device}", repr(signature), train)


def choices_file() -> Path | None:
    """Return the path of the file, or None if VPPS_TUNING disables it."""
    given = TUNING.get()
    if given.lower() in ("0", "false", "no", "off"):
        return None
    return cache_dir() / "tuning.json" if given == TUNING.default else Path(given).expanduser()


def find(key: Key) -> Choice | None:
    """Return the stored choice of a key, or None."""
    path = choices_file()
    found = None if path is None else _contents(path).get(key.digest)
    try:
        return None if found is None else _parsed(found)
    except _DAMAGE as error:
        _log.warning("a choice in %s is damaged and not used: %r", path, error)
        return None


def keep(key: Key, choice: Choice) -> Path | None:
    """Write a choice to the file, if enabled; return the path. Raises OSError if the file cannot be written."""
    path = choices_file()
    if path is None:
        return None
    about = {"device": key.device, "train": key.train, "vpps": __version__}
    found = {**choice.candidate._asdict(), "ratio": choice.ratio, "by": choice.by}
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    contents = _contents(path) | {key.digest: about | found}
    with replacing(path) as new:
        new.write_text(json.dumps(contents, indent=1) + "\n", encoding="utf-8")
    return path


def _contents(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except FileNotFoundError:
        pass
    except _DAMAGE as error:
        _log.warning("%s is damaged and not used: %r", path, error)
    return {}


def _parsed(found: Any) -> Choice:
    """Parse a choice. Raises ValueError, LookupError or TypeError if it is malformed."""
    candidate, ratio = Candidate(**{name: found[name] for name in Candidate._fields}), found["ratio"]
    if not all(n is None or (type(n) is int and n > 0) for n in candidate):
        raise ValueError("numbers that are not counts")
    if not (isinstance(ratio, float) and 0 < ratio < 1e9):
        raise ValueError("not a ratio of times")
    return Choice(candidate, ratio, str(found["by"]))
