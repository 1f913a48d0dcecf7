"""What stands for compilers in tests of the cache."""

from __future__ import annotations

from pathlib import Path


def copy(text: Path, binary: Path) -> None:
    """Stands for a compiler."""
    binary.write_bytes(b"binary of " + text.read_bytes())


def copy_with_facts(text: Path, binary: Path) -> dict[str, object]:
    """Stands for a compiler that has something to say."""
    copy(text, binary)
    return {"registers": 168, "warnings": ["line 7: unused"]}


def refuse(text: Path, binary: Path) -> None:
    """Where nothing is to be compiled."""
    raise AssertionError("nothing should be built")


def names(folder: Path) -> list[str]:
    """All files of a cache, without the folders that they are in."""
    return sorted(p.name for p in folder.rglob("*") if not p.is_dir())


def suffixes(folder: Path) -> list[str]:
    """Of all files of a cache."""
    return sorted(Path(name).suffix for name in names(folder))


def key_named(name: str) -> str:
    """A key that tells its name."""
    return name.encode().hex().ljust(32, "0")


def name_of(key: str) -> str:
    """The name that a key of these tests spells."""
    return bytes.fromhex(key).rstrip(b"\0").decode()
