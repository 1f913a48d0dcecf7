"""The default number of virtual processors, limited by affinity and control-group quotas."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.processes import run
from vpps.runtime.cores import default_vps, usable_cores

pytestmark = pytest.mark.host

V2 = {"proc/self/cgroup": "0::/pod/box\n"}
V1 = {"proc/self/cgroup": "5:memory:/pod/box\n4:cpu,cpuacct:/pod/box\n1:name=systemd:/x:y\n0::/\n"}
V1_FOLDER = "sys/fs/cgroup/cpu,cpuacct"

CASES: dict[str, tuple[dict[str, str], int]] = {
    "no files at all": ({}, 64),
    "v2, no limit": (V2 | {"sys/fs/cgroup/pod/box/cpu.max": "max 100000\n"}, 64),
    "v2, two cores": (V2 | {"sys/fs/cgroup/pod/box/cpu.max": "200000 100000\n"}, 2),
    "v2, two and a half": (V2 | {"sys/fs/cgroup/pod/box/cpu.max": "250000 100000\n"}, 2),
    "v2, a tenth": (V2 | {"sys/fs/cgroup/pod/box/cpu.max": "10000 100000\n"}, 1),
    "v2, more than there are": (V2 | {"sys/fs/cgroup/pod/box/cpu.max": "9900000 100000\n"}, 64),
    "v2, the pod's limit": (
        V2 | {"sys/fs/cgroup/pod/cpu.max": "300000 100000\n", "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n"},
        3,
    ),
    "v2, the least of both": (
        V2 | {"sys/fs/cgroup/pod/cpu.max": "300000 100000\n", "sys/fs/cgroup/pod/box/cpu.max": "50000 10000\n"},
        3,
    ),
    "v2, mounted as the container's own": (V2 | {"sys/fs/cgroup/cpu.max": "400000 100000\n"}, 4),
    "v2, an own name space": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "400000 100000\n"}, 4),
    "v2, unreadable": (V2 | {"sys/fs/cgroup/pod/box/cpu.max": "what?\n"}, 64),
    "v1, no limit": (
        V1 | {f"{V1_FOLDER}/pod/box/cpu.cfs_quota_us": "-1\n", f"{V1_FOLDER}/pod/box/cpu.cfs_period_us": "100000\n"},
        64,
    ),
    "v1, five cores": (
        V1 | {f"{V1_FOLDER}/pod/box/cpu.cfs_quota_us": "250000\n", f"{V1_FOLDER}/pod/box/cpu.cfs_period_us": "50000\n"},
        5,
    ),
    "v1, mounted as the container's own": (
        V1 | {f"{V1_FOLDER}/cpu.cfs_quota_us": "100000\n", f"{V1_FOLDER}/cpu.cfs_period_us": "100000\n"},
        1,
    ),
}


@pytest.mark.parametrize("files, cores", CASES.values(), ids=CASES)
def test_quotas_of_control_groups_count(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    assert usable_cores(tmp_path) == cores


def test_without_affinity_all_cores_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    assert usable_cores(tmp_path) == 12
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores(tmp_path) == 1


def test_training_leaves_a_core_of_three_to_the_host_thread() -> None:
    assert [default_vps(cores, overlapped=True) for cores in (1, 2, 3, 4, 16)] == [1, 2, 2, 3, 15]
    assert [default_vps(cores, overlapped=False) for cores in (1, 2, 3, 4, 16)] == [1, 2, 3, 4, 16]


@pytest.mark.cpu
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system pins no processes")
def test_a_process_on_one_core_gets_one_virtual_processor() -> None:
    out = run(
        """
        import os
        import vpps

        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
        with vpps.Handle(vpps.Model()) as handle:
            print(handle.vps)
        """
    )
    assert out == "1\n"
