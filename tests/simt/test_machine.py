"""Environment variables set the emulated machine's thread order and its search for races; tests share a kernel."""

from __future__ import annotations

import pytest

import vpps
from tests.simt import models
from vpps.kernel.spec import KernelSpec
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


def test_one_kernel_serves_all_models_with_weights_in_memory(in_memory: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the emulated tests of ops compile hundreds of kernels."""
    specs: list[KernelSpec] = []
    monkeypatch.setattr(SimtMachine, "_specialise", lambda machine, spec: specs.append(spec))
    for make in (models.tagger, models.attention):
        network = make()
        with vpps.Handle(network.model) as handle, pytest.raises(vpps.HandleError, match="begun without a kernel"):
            handle.gradients(*network.batch(0))
    assert len(specs) == 2
    assert len({*specs}) == 1
