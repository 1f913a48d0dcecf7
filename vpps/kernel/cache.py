"""Cache of compiled kernels on disk: keyed by content, written atomically, private to the user."""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from vpps.config import cache_dir
from vpps.errors import CompileError

_ADVICE = "set VPPS_CACHE_DIR to a directory of your own"


def key_of(*parts: str) -> str:
    """Digest of everything a binary depends on."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:".encode())
        digest.update(part.encode())
    return digest.hexdigest()[:32]


def cached(
    key: str,
    suffix: str,
    source: str,
    build: Callable[[Path, Path], None],
    source_suffix: str = ".cpp",
    companions: tuple[str, ...] = (),
    usable: Callable[[Path], bool] = Path.is_file,
) -> Path:
    """Path of the binary for `key`, built now if it is not there.

    Args:
        key: see `key_of`.
        suffix: of the binary, such as ".so".
        source: text that `build` compiles; kept beside the binary for whoever wants to read it.
        build: `build(source_path, binary_path)` compiles one into the other or raises.
        source_suffix: of the text.
        companions: suffixes of files that `build` writes beside the binary, under its name.
        usable: whether the binary is there and, if the caller can tell, undamaged.

    Raises:
        CompileError: the directory cannot be used (the message says why), or what `build` raises.
    """
    folder = _private_directory(cache_dir().absolute())
    binary = folder / f"{key}{suffix}"
    if usable(binary):
        return binary
    # Processes may build the same kernel at once: each in a directory of its own, and the rename decides.
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix="build-") as scratch:
            text = Path(scratch) / f"{key}{source_suffix}"
            text.write_text(source, encoding="utf-8")
            result = Path(scratch) / f"{key}{suffix}"
            build(text, result)
            files = [result.with_suffix(s) for s in (*companions, suffix)]  # the binary last: it says that all is there
            for file in files:
                _flush(file)
            for file in (text, *files):
                os.replace(file, folder / file.name)
    except OSError as error:
        raise CompileError(f"the kernel cache {folder} cannot be written ({error}); {_ADVICE}") from error
    return binary


def write_atomically(path: Path, contents: str) -> None:
    """Replace a file of the cache. Raises CompileError if it cannot be written."""
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as scratch:
            text = Path(scratch) / path.name
            text.write_text(contents, encoding="utf-8")
            _flush(text)
            os.replace(text, path)
    except OSError as error:
        raise CompileError(f"{path} cannot be written ({error}); {_ADVICE}") from error


def _flush(file: Path) -> None:
    """To the disk: else a power failure may leave a file that has its name but not its contents."""
    with file.open("rb") as f:
        os.fsync(f.fileno())


def load_library(path: Path) -> ctypes.CDLL:
    """A compiled kernel of the cache, loaded. Raises CompileError; then it is gone, and compiled anew the next time."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        path.unlink(missing_ok=True)
        raise CompileError(
            f"the compiled kernel cannot be loaded and was removed from the cache ({error}); try again, and if that "
            "does not help set CXX to another compiler"
        ) from error


def _private_directory(folder: Path) -> Path:
    """Create the directory with mode 0700; refuse one that others could plant binaries in."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise CompileError(f"the kernel cache {folder} cannot be created ({error}); {_ADVICE}") from error
    if hasattr(os, "getuid") and status.st_uid != os.getuid():
        raise CompileError(f"the kernel cache {folder} belongs to another user; {_ADVICE}")
    if status.st_mode & 0o022:
        raise CompileError(
            f"the kernel cache {folder} is writable by other users, who could plant a binary there; "
            f"run chmod 700 on it, or {_ADVICE}"
        )
    return folder
