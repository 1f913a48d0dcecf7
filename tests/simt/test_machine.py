"""Environment variables set the emulated machine's thread order and its search for races."""

from __future__ import annotations

import pytest

import vpps
from vpps.runtime.simt import SimtMachine

pytestmark = pytest.mark.host


def test_the_environment_chooses_seed_and_search(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SimtMachine()
    assert (machine.seed, machine.races) == (0, True)
    monkeypatch.setenv("VPPS_SIMT_SEED", "7")
    monkeypatch.setenv("VPPS_SIMT_RACES", "0")
    machine = SimtMachine()
    assert (machine.seed, machine.races) == (7, False)
    machine = SimtMachine(seed=3, races=True)
    assert (machine.seed, machine.races) == (3, True)


@pytest.mark.parametrize(
    "name, value", [("VPPS_SIMT_SEED", "-1"), ("VPPS_SIMT_SEED", str(2**64)), ("VPPS_SIMT_RACES", "yes")]
)
def test_other_values_are_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(vpps.HandleError, match=f"{name}={value}: expected a whole number from 0 to"):
        SimtMachine()
