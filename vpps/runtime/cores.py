"""Counts the cores that this process may use, and derives the number of virtual processors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def default_vps(cores: int, overlapped: bool) -> int:
    """Return the default number of virtual processors.

    In training, the host thread records and plans the next batch while the kernel runs. Suppose that this takes h
    seconds per batch, and the kernel W seconds on one core. If all C cores have a virtual processor, one of these
    shares its core with the host and the others wait for it: W/C + h per batch. If one core is left free, a batch takes
    the larger of W/(C - 1) and h, which is less if h/W > 1/(C (C - 1)). For the Tree-LSTM in bench/treelstm.py, h/W is
    about 1 at batch 1, 0.35 at 8 and 0.22 at 64. So with three or more cores, one is left free. Two are both used: 474,
    950 and 1242 sentences/s at batch 1, 8 and 64; one would give 532, 883 and 892: more only at batch 1.

    Args:
        cores: number of cores that the process may use.
        overlapped: True if the host thread works during launches (training); inference waits for them.
    """
    return cores - 1 if overlapped and cores > 2 else cores


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of cores that this process may keep busy, at least one: the minimum of affinity and quotas.

    A container's quota (`docker run --cpus 2`, a Kubernetes limit) leaves all cores of the machine visible. If more
    threads run than it allows, the system stops all of them for the rest of every period. Fractions are rounded down.

    Args:
        root: root of the file system, for tests.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *(int(quota) for quota in _quotas(root))]))


def _quotas(root: Path) -> Iterator[float]:
    """Yield the quotas, in cores, of the control groups that contain this process; cgroups(7), versions 2 and 1."""
    try:
        groups = (root / "proc/self/cgroup").read_text()
    except OSError:
        return  # not Linux, or no /proc
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            for folder in _around(root / "sys/fs/cgroup", path):
                limit, _, period = _read(folder / "cpu.max").partition(" ")
                yield from _ratio(limit, period)
        elif "cpu" in controllers.split(","):
            for folder in _around(root / "sys/fs/cgroup" / controllers, path):
                yield from _ratio(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))


def _around(mount: Path, path: str) -> Iterator[Path]:
    """Yield a group's folder and its parents, each of which may have a quota. In a container, `path` may be a path of
    the host that is not visible, while the mount is the container's own group."""
    folder = mount / path.strip("/")
    yield folder
    while folder != mount:
        folder = folder.parent
        yield folder


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _ratio(limit: str, period: str) -> Iterator[float]:
    """Yield the quota in cores, or nothing for "max", -1 and unreadable values."""
    if limit.isdigit() and period.isdigit() and int(limit) and int(period):
        yield int(limit) / int(period)
