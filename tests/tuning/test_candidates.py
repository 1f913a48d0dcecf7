"""Candidates: the list, and their changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import vpps
from vpps.engine.configuration import Configuration
from vpps.placement.onchip import MatrixSpec, known_device, plan_onchip
from vpps.tuning.candidates import Candidate, candidates_for, counts

pytestmark = pytest.mark.host

H200 = known_device("H200")
TREE = (MatrixSpec("U", 1024, 512, 4, 2), MatrixSpec("Wo", 5, 256))


def engine(device: Any = H200, vps: int = 132, matrices: Any = TREE) -> Any:
    """Return the parts of an engine on which candidates depend."""
    onchip = plan_onchip(matrices, device, vps, vpps.ChipOptions()) if device is not None and matrices else None
    return SimpleNamespace(
        machine=SimpleNamespace(device=device, vps=vps), arrangement=SimpleNamespace(onchip=onchip)
    )  # fmt: skip


def described(found: list[Candidate]) -> list[str]:
    return [candidate.describe() for candidate in found]


class TestList:
    def test_on_cpu_is_of_virtual_processors_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Results are bit-identical: no candidate changes the policy, which would change the order of gradient sums."""
        monkeypatch.setattr("vpps.tuning.candidates.usable_cores", lambda: 4)
        assert described(candidates_for(engine(None, 3))) == ["default", "vps 1", "vps 2", "vps 4"]
        assert described(candidates_for(engine(None, 3), {"vps", "policy"})) == ["default"]

    @pytest.mark.parametrize(
        "cores, expected",
        [
            (1, [1]),
            (8, [1, 2, 3, 4, 5, 6, 7, 8]),
            (16, [1, 2, 4, 8, 12, 15, 16]),
            (64, [1, 2, 4, 8, 16, 32, 48, 63, 64]),
        ],
    )
    def test_counts_include_all_cores_and_one_less(self, cores: int, expected: list[int]) -> None:
        assert counts(cores) == expected

    def test_on_a_gpu_is_of_groups_and_rows_per_warp(self) -> None:
        """A thread's registers for slots, 256 - 64, divided by the floats per lane in the widest row."""
        rows = [f"rpw {n}" for n in range(1, 13)]
        assert described(candidates_for(engine())) == ["default", "groups 2", "groups 4", *rows]
        assert described(candidates_for(engine(vps=66))) == ["default", "groups 2", *rows], "of equal size"

    def test_on_a_gpu_stops_where_a_block_has_all_rows(self) -> None:
        found = candidates_for(engine(matrices=(MatrixSpec("U", 72, 16),)))
        assert [c.rpw for c in found if c.rpw] == list(range(1, 10))

    def test_keeps_what_the_user_chose(self) -> None:
        assert described(candidates_for(engine(), {"onchip"})) == ["default"]
        assert not any(c.rpw for c in candidates_for(engine(), {"schedule"}))

    def test_without_matrices_has_nothing_to_try(self) -> None:
        assert candidates_for(engine(matrices=())) == [Candidate()]


@pytest.mark.parametrize(
    "candidate, changes",
    [
        (Candidate(), {}),
        (Candidate(vps=3), {"vps": 3}),
        (Candidate(groups=2), {"onchip": vpps.ChipOptions(groups=2)}),
        (Candidate(rpw=2), {"schedule": "paper", "onchip": vpps.ChipOptions("round-robin", 2)}),
    ],
    ids=str,
)
def test_changes_are_fields_of_a_configuration(candidate: Candidate, changes: dict[str, Any]) -> None:
    assert candidate.changes == changes
    assert Configuration(**changes)
