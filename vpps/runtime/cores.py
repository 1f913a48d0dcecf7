"""How many cores this process may use, and how many virtual processors that makes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def default_vps(cores: int, overlapped: bool) -> int:
    """Virtual processors on so many cores.

    In training the host thread records and plans the next batch while the kernel runs. Say that takes h seconds a
    batch, and the kernel W seconds on one core. With a virtual processor on each of C cores, one of them shares its
    core and the others wait for it at barriers: W/C + h. With one core left free: the larger of W/(C - 1) and h, which
    is less as soon as h/W > 1/(C (C - 1)). For the Tree-LSTM of bench/treelstm.py h/W is about 1 at batch 1, 0.35 at
    8 and 0.22 at 64: from three cores on, one is left free. On two, both are used: 474, 950 and 1242 sentences/s at
    batch 1, 8 and 64 against 532, 883 and 892 with one; only at batches below 8 is one better.

    Args:
        cores: that the process may use.
        overlapped: whether the host thread works during launches (training); inference waits for them.
    """
    return cores - 1 if overlapped and cores > 2 else cores


def usable_cores(root: Path = Path("/")) -> int:
    """Cores that this process may keep busy, at least one: what the scheduler lets it run on, what it is granted.

    A container's quota (`docker run --cpus 2`, a Kubernetes limit) leaves all cores of the machine visible; threads
    beyond it would be stopped, all of them, for the rest of every period. Half a core more than whole ones is no core.

    Args:
        root: of the file system, for tests.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *(int(quota) for quota in _quotas(root))]))


def _quotas(root: Path) -> Iterator[float]:
    """Processor time per time of the control groups around this process; cgroups(7), version 2 and version 1."""
    try:
        groups = (root / "proc/self/cgroup").read_text()
    except OSError:
        return  # no Linux, or no /proc
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
    """A group's folder and those around it: each may have a quota. In a container `path` may be one of the host's that
    is not to be seen, while the mount is the container's own group."""
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
    """Nothing for "max", -1, and what cannot be read."""
    if limit.isdigit() and period.isdigit() and int(limit) and int(period):
        yield int(limit) / int(period)
