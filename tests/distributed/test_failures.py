"""A failure in one rank stops all ranks, and is reported once, with rank and cause."""

from __future__ import annotations

import re
import signal

import pytest

from tests.distributed import ranks
from tests.distributed.failing import TIMEOUT

MODULE = "tests.distributed.failing"
WHO = r"rank 1 of \d \(process \d+ on [^)]+\)"

SAID = {
    "raises": rf"{WHO} ends with ValueError: it cannot go on",
    "fb": rf"{WHO} ends with GraphError: fb: .*",
    "fb, caught": rf"{WHO} has failed: CapacityError: .*",
    "adds up": rf"{WHO} ends with MemoryError: no room for it",
    "all": r"rank 0 .* ends with ValueError: it cannot go on",
    "exits": rf"{WHO} has ended, while rank 0 .* begins a step",
    "returns": rf"{WHO} has ended, while rank 0 .* begins a step",
    "longer": rf"rank 0 .* has ended, while {WHO} begins a step",
    "gathers": r"ranks make different calls: rank 0 a step, rank 1 a gather.*",
    "assigns": rf"{WHO} is not like the others in its weights, at step 5: .*",
    "compares": rf"{WHO} is not like the others in its weights, after step 3: .*",
    "skips": rf"{WHO} is not like the others in the number of mini-batches that it has drawn, at step 4: .*",
    "model": rf"{WHO} is not like the others in its model \(names, .*\), at step 1: .*",
    "precision": rf"{WHO} is not like the others in its model \(.*, precision\), at step 1: .*",
    "stopped": rf"{WHO} did not come within {TIMEOUT:g} s, while rank \d .* waited",
}
ELSEWHERE = ("raises", "exits", "stopped")
"""Ways to test with transports other than MPICH."""

WAYS = [
    *(pytest.param("mpiexec", way, id=way) for way in SAID),
    *(pytest.param("openmpi", way, id=f"{way}-openmpi") for way in ELSEWHERE),
    *(pytest.param("torchrun", way, marks=ranks.GLOO, id=f"{way}-gloo") for way in ELSEWHERE),
]
pytestmark = pytest.mark.cpu


def ended(launcher: str, way: str, *more: str) -> ranks.ProgramResult:
    """Return how two ranks end, or three if only a majority shows which rank is wrong."""
    found = ranks.finish(ranks.start(launcher, 3 if way in ("assigns", "compares", "all") else 2, MODULE, way, *more))
    assert found.status != 0
    return found


def said(found: ranks.ProgramResult) -> list[str]:
    """Return the lines that a rank prints when it stops all ranks."""
    return re.findall(r"^vpps: (.*); all ranks end$", found.err, re.MULTILINE)


@pytest.mark.parametrize("launcher, way", WAYS)
def test_one_rank_says_what_is_wrong(launcher: str, way: str) -> None:
    found = ended(launcher, way)
    (line,) = said(found)
    assert re.fullmatch(SAID[way], line)
    has_traceback = way in ("raises", "fb", "adds up", "all")
    assert found.err.count(", in main\n    Training(") == has_traceback


@pytest.mark.parametrize("way", ["raises", "exits"])
def test_what_leaves_the_block_of_a_world_ends_all(way: str) -> None:
    (line,) = said(ended("mpiexec", way, "block"))
    assert re.fullmatch(rf"{WHO} ends with (ValueError: it cannot go on|status 3)", line)


@pytest.mark.parametrize("launcher", ranks.LAUNCHERS)
@pytest.mark.parametrize("way", ["killed", "vanishes"])
def test_the_launcher_says_what_was_killed(launcher: str, way: str) -> None:
    """Other ranks report the failure if the launcher does not stop them."""
    assert len(said(ended(launcher, way))) <= 1


@pytest.mark.parametrize("way", ["early", "late"])
def test_the_beginning_of_mpi_has_a_timeout(way: str) -> None:
    assert "init: not all of 2 ranks came here within" in ended("mpiexec", way).err


def test_a_rank_that_ends_before_mpi_begins_ends_all() -> None:
    assert "in _wait_until_all_ranks_have_begun" in ended("mpiexec", "before").err


@pytest.mark.parametrize("launcher", ranks.LAUNCHERS)
def test_nothing_ends_a_program_whose_ranks_have_parted(launcher: str) -> None:
    """A program may run for any time after its ranks have left the world."""
    said = ranks.run(launcher, 2, MODULE, "ends", "block")
    assert said.count("ends in its own time") == 2


@pytest.mark.parametrize("launcher", ranks.LAUNCHERS)
def test_ctrl_c_ends_all(launcher: str) -> None:
    process = ranks.start(launcher, 2, MODULE, "sleeps")
    assert process.stdout is not None
    assert process.stdout.readline() == "asleep\n"
    process.send_signal(signal.SIGINT)
    found = ranks.finish(process)
    assert found.status != 0
    assert len(said(found)) <= (2 if launcher == "torchrun" else 1)  # torchrun interrupts each of them
