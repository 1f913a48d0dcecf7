"""Finds shared libraries that were compiled when vpps was installed: `vpps/prebuilt/` in the package.

`vpps/installation.py` stores them there. A file's name ends with a digest of all inputs except the compiler, so that a
library is not used after its source has changed. A checkout may hold libraries for several Pythons and machines.
"""

from __future__ import annotations

import platform
import shlex
from dataclasses import dataclass
from pathlib import Path

from vpps.errors import CompileError
from vpps.kernel import ziglang
from vpps.kernel.cache import Label, key_of

FOLDER = Path(__file__).parents[1] / "prebuilt"


@dataclass(frozen=True, slots=True)
class HostLibrary:
    """Inputs of a shared library for the host.

    Attributes:
        name: start of the file name; it contains all dependencies besides source and flags.
        what: name of the source, for messages.
        source: the whole text.
        flags: compiler flags, in the spelling of g++.
        label: its description in the cache.
        headers: folders of third-party headers.
        target: zig's name for the platform to compile for, such as "aarch64-linux-gnu.2.17"; "": this machine.
    """

    name: str
    what: str
    source: str
    flags: tuple[str, ...]
    label: Label
    headers: tuple[str, ...] = ()
    target: str = ""

    @property
    def beginning(self) -> str:
        """Start of its file name, which does not depend on its source."""
        return f"{self.name}-{self.target.partition('-')[0] or platform.machine()}-"

    @property
    def file_name(self) -> str:
        return f"{self.beginning}{key_of(self.source, shlex.join(self.flags), ziglang.identity())[:16]}.so"


def find(library: HostLibrary) -> Path | None:
    """Path of a library that was compiled when vpps was installed; None if there is none."""
    path = FOLDER / library.file_name
    return path if path.is_file() else None


def installed(library: HostLibrary) -> Path:
    """Path of a library that is compiled only at installation. Raises CompileError if it is missing."""
    path = find(library)
    if path is None:
        raise CompileError(
            f"{library.what} was not compiled when vpps was installed, or was changed since: install it again (in a "
            "checkout: pip install -e ., or python -m vpps.installation)"
        )
    return path
