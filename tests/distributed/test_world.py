"""What starts ranks is recognised, arguments are checked, and a process alone is a world of one."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

import vpps
import vpps.distributed
from tests.distributed import ranks
from tests.processes import ROOT
from vpps.distributed.launcher import launcher

pytestmark = pytest.mark.host

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}


@pytest.fixture(autouse=True)
def _nothing_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*TORCHRUN, "PMI_SIZE", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "variables, backend",
    [
        ({}, "alone"),
        (TORCHRUN, "torch"),
        ({"RANK": "0"}, "alone"),
        ({"PMI_SIZE": "2", "PMI_RANK": "0"}, "mpi"),
        ({"OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "0"}, "mpi"),
        ({"SLURM_STEP_NUM_TASKS": "1"}, "alone"),
    ],
)
def test_what_started_the_process_is_recognised(
    variables: dict[str, str], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launcher() == backend


def test_srun_without_a_way_to_meet_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    with pytest.raises(vpps.DistributedError, match="srun --mpi=pmi2"):
        vpps.distributed.init()


def test_an_mpi_that_does_not_understand_the_launcher_is_an_error() -> None:
    """Else every process would train alone."""
    if why := ranks.missing("mpiexec"):
        pytest.skip(why)
    command = [sys.executable, "-c", "import vpps; vpps.distributed.init()"]
    environment = {**os.environ, "OMPI_COMM_WORLD_SIZE": "2"}  # of Open MPI, and this is MPICH
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert result.returncode == 1
    assert "2 processes were started together, but MPICH" in result.stderr


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"backend": "nccl"}, r"init\(backend='nccl'\): expected one of mpi, torch, alone"),
        ({"backend": 3}, r"init\(backend=3\): expected one of"),
        ({"shards": 0}, "init: shards"),
        ({"shards": 1.5}, "init: shards"),
        ({"timeout": 0}, r"init\(timeout=0\): expected seconds"),
        ({"timeout": float("inf")}, r"init\(timeout=inf\): expected seconds"),
        ({"timeout": "long"}, r"init\(timeout='long'\): expected seconds"),
        ({"check_every": 0}, "init: check_every"),
        ({"bind": "yes"}, "init: bind"),
    ],
)
def test_wrong_arguments_are_errors(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(vpps.DistributedError, match=message):
        vpps.distributed.init(**arguments)


def test_a_process_alone_is_a_world_of_one() -> None:
    with vpps.distributed.init(shards=4) as world:
        assert (world.rank, world.size, world.shards, world.mine) == (0, 1, 4, range(4))
        assert world.is_first
        assert world.gather("this") == ["this"]
        world.barrier()
    world.close()


def test_an_exception_leaves_the_block_of_a_world_of_one() -> None:
    with pytest.raises(ValueError, match="this"), vpps.distributed.init():
        raise ValueError("this")
