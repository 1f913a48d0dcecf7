"""Fake compilers and helpers for tests of the cache."""

from __future__ import annotations

from pathlib import Path


def copy(text: Path, binary: Path) -> None:
    """Fake compiler that copies the source."""
    binary.write_bytes(b"binary of " + text.read_bytes())


def copy_with_facts(text: Path, binary: Path) -> dict[str, object]:
    """Fake compiler that copies the source and returns facts."""
    copy(text, binary)
    return {"registers": 168, "warnings": ["line 7: unused"]}


def refuse(text: Path, binary: Path) -> None:
    """Fake compiler for tests in which nothing may be compiled."""
    raise AssertionError("nothing should be built")


def names(folder: Path) -> list[str]:
    """Names of all files in a cache, without their folders."""
    return sorted(p.name for p in folder.rglob("*") if not p.is_dir())


def suffixes(folder: Path) -> list[str]:
    """Suffixes of all files in a cache."""
    return sorted(Path(name).suffix for name in names(folder))


def key_named(name: str) -> str:
    """A key that encodes a name."""
    return name.encode().hex().ljust(32, "0")


def name_of(key: str) -> str:
    """The name that a key from `key_named` encodes."""
    return bytes.fromhex(key).rstrip(b"\0").decode()
