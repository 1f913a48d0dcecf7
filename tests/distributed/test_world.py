"""Launchers are recognised, arguments are checked, and a single process is a world of one."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

import vpps
import vpps.distributed
from tests.distributed import ranks
from tests.processes import ROOT
from vpps import config
from vpps.distributed.launcher import launcher
from vpps.distributed.transports import Messages, Transport
from vpps.distributed.transports.mpi import MpiTransport
from vpps.distributed.world import World

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
    """Otherwise every process would train on its own."""
    if why := ranks.missing("mpiexec"):
        pytest.skip(why)
    command = [sys.executable, "-c", "import vpps; vpps.distributed.init()"]
    environment = {**os.environ, "OMPI_COMM_WORLD_SIZE": "2"}  # Open MPI's variable, but this is MPICH
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert result.returncode == 1
    assert "2 processes were started together, but MPICH" in result.stderr


def test_a_process_that_was_stopped_itself_finds_what_came_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few more MPI calls are needed."""
    clock, answers = itertools.count(step=9), iter([False, False, True])
    monkeypatch.setattr("vpps.distributed.transports.time", SimpleNamespace(monotonic=lambda: next(clock)))
    transport = object.__new__(MpiTransport)
    transport._mpi = SimpleNamespace(Request=SimpleNamespace(Testall=lambda _: next(answers)))
    transport.exchange([], [], timeout=1.2)


def test_a_process_alone_is_a_world_of_one() -> None:
    with vpps.distributed.init(shards=4) as world:
        assert (world.rank, world.size, world.shards, world.mine) == (0, 1, 4, range(4))
        assert world.is_first
        assert world.gather("this") == ["this"]
        world.barrier()
    world.close()


class Echo(Transport):
    """Exchanges with a second rank that sends the same values."""

    name, rank, size = "echo", 0, 2

    def __init__(self, any_thread: bool) -> None:
        self.any_thread = any_thread

    def exchange(self, sends: Messages, receives: Messages, timeout: float) -> None:
        for (_, sent), (_, received) in zip(sends, receives, strict=True):
            received[...] = sent

    def abort(self, status: int) -> None:
        raise AssertionError

    def close(self) -> None:
        pass


class EchoToTheFirst(Echo):
    """Echo the values as the second rank."""

    rank = 1


@pytest.mark.parametrize("transport, said", [(Echo, "vpps: compiling\n"), (EchoToTheFirst, "")])
def test_only_the_first_rank_gives_notices(
    transport: type[Echo], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All ranks wait for a kernel that one of them compiles."""
    monkeypatch.setattr(config, "_quiet", None)
    monkeypatch.setenv("VPPS_LOG", "")
    config.notice.cache_clear()
    world = World(transport(any_thread=False), None, 60.0, 0, bind=False)
    config.notice("compiling")
    assert capsys.readouterr().err == said
    world.close()


def in_a_thread(call: Callable[[], Any]) -> Any:
    """Return the result or error of a call in a thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call).result(20)


def test_a_world_belongs_to_the_thread_that_made_it() -> None:
    """A world also belongs to the thread that it has started, to which no other thread may give work."""
    with World(Echo(any_thread=True), None, 9.0, 1, bind=False) as world:
        for call in (world.barrier, lambda: world.gather(1), lambda: world.aside(int)):
            with pytest.raises(vpps.DistributedError, match="belongs to the thread that made it"):
                in_a_thread(call)
        assert world.aside(lambda: (threading.get_ident(), world.gather(1))).result(20)[1] == [1, 1]
        world.barrier()
        in_a_thread(world.wait_aside)


@pytest.mark.parametrize("any_thread", [True, False])
def test_what_is_done_aside_is_done_at_once_where_the_transport_knows_one_thread(any_thread: bool) -> None:
    with World(Echo(any_thread), None, 9.0, 1, bind=False) as world:
        assert (world.aside(threading.get_ident).result(20) == threading.get_ident()) != any_thread


@pytest.mark.parametrize("transport", [None, Echo(any_thread=True)])
def test_closing_ends_the_thread(transport: Transport | None) -> None:
    world = World(transport, None, 9.0, 1, bind=False)
    thread = world.aside(threading.current_thread).result(20)
    world.close()
    thread.join(20)
    assert not thread.is_alive()


def test_an_exception_leaves_the_block_of_a_world_of_one() -> None:
    with pytest.raises(ValueError, match="this"), vpps.distributed.init():
        raise ValueError("this")
