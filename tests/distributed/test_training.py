"""Several processes train to the same bits as one process with the same number of shards, over every transport."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import vpps.distributed
from tests.comparison import relative_error
from tests.distributed import cases, ranks
from tests.distributed.cases import CASES, CASES_OF_ZOO, SHARDS, STEPS_OF_ZOO, Results

pytestmark = pytest.mark.cpu

# Worlds of two are tested below, as the halves of four.
WORLDS = [
    *(pytest.param("mpiexec", n, id=f"mpich-{n}") for n in (1, 3, 4)),
    pytest.param("openmpi", 3, id="openmpi-3"),
    pytest.param("torchrun", 3, id="gloo-3", marks=ranks.GLOO),
]
BOUND = 1e-5
"""Largest effect of another number of shards, which changes the order of sums."""


def alone(shards: int) -> Results:
    return cases.results(vpps.distributed.init("alone", shards=shards))


@pytest.fixture(scope="module")
def expected() -> Results:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VPPS_VERIFY", "0")  # other numbers of shards only have scripts of the same kinds
        return alone(SHARDS)


def assert_equal(found: Results, expected: Results) -> None:
    assert found.keys() == expected.keys()
    for name, case in CASES.items():
        assert found[name].keys() == expected[name].keys()
        for what, array in found[name].items():
            if case.by_rank:
                assert relative_error(array, expected[name][what]) < BOUND, f"{name}: {what}"
            else:
                assert array.tobytes() == expected[name][what].tobytes(), f"{name}: {what}"


@pytest.mark.parametrize("launcher, n", WORLDS)
def test_ranks_train_as_one_process_does(launcher: str, n: int, expected: Results, tmp_path: Path) -> None:
    ranks.run(launcher, n, "tests.distributed.cases", tmp_path / "found", SHARDS)
    assert_equal(pickle.loads((tmp_path / "found").read_bytes()), expected)


@pytest.mark.parametrize("launcher", ranks.LAUNCHERS)
def test_a_part_of_all_processes_is_a_world(launcher: str, expected: Results, tmp_path: Path) -> None:
    """A communicator that the program has split, with MPI for a single thread, or groups that the program made."""
    ranks.run(launcher, 4, "tests.distributed.cases", tmp_path / "found", SHARDS, "halves")
    for which in range(2):
        assert_equal(pickle.loads((tmp_path / f"found{which}").read_bytes()), expected)


@pytest.mark.parametrize("shards", [1, 3])
def test_another_number_of_shards_changes_the_order_of_sums_alone(shards: int, expected: Results) -> None:
    """With one shard, the handle behaves as without a world."""
    found = alone(shards)
    for name, case in CASES.items():
        assert found[name].keys() == expected[name].keys()
        if case.by_shard:
            continue
        for what, array in found[name].items():
            finite = np.isfinite(array)
            assert (finite == np.isfinite(expected[name][what])).all()
            assert relative_error(array[finite], expected[name][what][finite]) < BOUND, f"{name}: {what}"


def test_a_step_that_is_not_finite_in_one_shard_is_left_out(expected: Results) -> None:
    assert np.isinf(expected["infinite"]["losses"]).tolist() == [False, True, False, False]
    assert expected["raises"]["losses"].tolist().index(-1) == 1
    assert all(np.abs(expected["infinite"][name]).max() < 100 for name in "Wb")


def test_masks_of_dropout_differ_between_shards(expected: Results) -> None:
    found = cases.train(CASES["dropout"], vpps.distributed.init("alone"))
    assert relative_error(found["W"], expected["dropout"]["W"]) > 1e-3


def test_every_network_of_the_zoo_trains_as_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are bit-identical to one process with as many shards, and equal one without up to the order of sums."""
    monkeypatch.setenv("VPPS_VERIFY", "0")  # tests/zoo verifies these networks' scripts, tests above those with shards
    ranks.run("mpiexec", 3, "tests.distributed.cases", tmp_path / "found", 3, "zoo")
    found = pickle.loads((tmp_path / "found").read_bytes())
    whole, expected = (cases.results(vpps.distributed.init("alone", shards=n), zoo=True) for n in (1, 3))
    for name in CASES_OF_ZOO:
        assert len(whole[name]["losses"]) == STEPS_OF_ZOO
        for what, array in whole[name].items():
            assert found[name][what].tobytes() == expected[name][what].tobytes(), f"{name}: {what}"
            assert relative_error(found[name][what], array) < BOUND, f"{name}: {what}"
