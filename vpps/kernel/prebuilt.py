"""Shared libraries that were compiled when vpps was installed, and lie in the package: `vpps/prebuilt/`.

`vpps/installation.py` puts them there. A file's name ends with a digest of all that the library was made of but its
compiler, so that none is used beside sources that have changed since; those of several Pythons and machines may lie
side by side in a checkout.
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
    """What a shared library for the host is made of.

    Attributes:
        name: its file's name begins with it; what it depends on besides source and flags is in here.
        what: the source is, for messages.
        source: the whole text.
        flags: of the compiler, as they are for g++.
        label: what it is, for whoever looks at the cache.
        headers: folders of headers that are not ours.
        target: zig's name of the platform to compile for, such as "aarch64-linux-gnu.2.17"; "": this one.
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
        """Of its file's name, which is the same whatever is changed in its source."""
        return f"{self.name}-{self.target.partition('-')[0] or platform.machine()}-"

    @property
    def file_name(self) -> str:
        return f"{self.beginning}{key_of(self.source, shlex.join(self.flags), ziglang.identity())[:16]}.so"


def find(library: HostLibrary) -> Path | None:
    """Where a library is, if it was compiled when vpps was installed."""
    path = FOLDER / library.file_name
    return path if path.is_file() else None


def installed(library: HostLibrary) -> Path:
    """Where a library is that is not compiled later. Raises CompileError: it is not there."""
    path = find(library)
    if path is None:
        raise CompileError(
            f"{library.what} was not compiled when vpps was installed, or was changed since: install it again (in a "
            "checkout: pip install -e ., or python -m vpps.installation)"
        )
    return path
