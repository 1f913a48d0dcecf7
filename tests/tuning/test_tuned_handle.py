"""Handles and the tuning database: what was found is used, without a word, and never in the way."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import vpps
from tests.tuning.models import Chain
from vpps.compiler.passes import Passes
from vpps.engine.configuration import Configuration
from vpps.runtime.choice import make_machine
from vpps.runtime.machine import Wanted
from vpps.tuning.database import Tuned, TuningDatabase, device_name, key_for

pytestmark = pytest.mark.cpu


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TuningDatabase:
    """One of its own, beside the kernels that are compiled already, and switched on."""
    found = TuningDatabase(tmp_path / "tuning")
    monkeypatch.setattr("vpps.tuning.database.TuningDatabase", lambda: found)
    monkeypatch.setenv("VPPS_TUNING", "1")
    return found


def store(database: TuningDatabase, configuration: Configuration, train: bool = True) -> None:
    chain = Chain()
    graph, _ = chain.batch()
    machine = make_machine("cpu", Wanted(None, vpps.ChipOptions(), train, False))
    key = key_for(chain.model, graph.blocks, device_name(machine), train)
    machine.close()
    database.store(key, Tuned(configuration, 0.001, 1.25, len(graph), "2026-11-22T12:00:00+00:00", "vpps-profile"))


def losses(chain: Chain, handle: vpps.Handle) -> list[float]:
    found = []
    for graph, loss in chain.batches():
        handle.fb(graph, loss)
        found.append(handle.sync_get_latest_loss())
    return found


def test_a_handle_takes_over_what_was_found_and_says_so(database: TuningDatabase) -> None:
    plain = Chain()
    with vpps.Handle(plain.model, target="cpu") as handle:
        expected = losses(plain, handle)
        assert "tuned" not in handle.explain()
    store(database, Configuration(vps=3, policy="depth", passes=Passes.from_environment()))
    chain = Chain()
    with vpps.Handle(chain.model, target="cpu") as handle:
        assert losses(chain, handle) == expected, "to the bit"
        assert (handle.vps, handle.policy) == (3, "depth")
        (line,) = (line for line in handle.explain().splitlines() if line.startswith("tuned"))
        assert "vps 3, policy depth" in line
        assert "by vpps-profile on 2026-11-22, 1.25x the default" in line


def test_what_the_user_gives_wins(database: TuningDatabase) -> None:
    store(database, Configuration(vps=3, policy="depth"))
    chain = Chain()
    with vpps.Handle(chain.model, target="cpu", vps=1) as handle:
        handle.fb(*chain.batch())
        assert (handle.vps, handle.policy) == (1, "depth")


def test_an_example_is_looked_up(database: TuningDatabase) -> None:
    store(database, Configuration(vps=3))
    chain = Chain()
    with vpps.Handle(chain.model, target="cpu", example=chain.batch()) as handle:
        assert handle.vps == 3


def test_evaluation_has_records_of_its_own(database: TuningDatabase) -> None:
    store(database, Configuration(vps=3), train=True)
    store(database, Configuration(vps=4), train=False)
    chain = Chain()
    graph, loss = chain.batch()
    with vpps.Handle(chain.model, target="cpu", train=False) as handle:
        handle.forward(graph, [loss])
        assert handle.vps == 4


def test_it_can_be_switched_off(database: TuningDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    store(database, Configuration(policy="depth"))
    monkeypatch.setenv("VPPS_TUNING", "0")
    chain = Chain()
    with vpps.Handle(chain.model, target="cpu") as handle:
        handle.fb(*chain.batch())
        assert handle.policy == "sinks-last"


@pytest.mark.parametrize("wrong", [Configuration(tile="gone"), Configuration(vps=-5)])
def test_what_cannot_be_had_any_more_is_given_up(
    database: TuningDatabase, wrong: Configuration, caplog: pytest.LogCaptureFixture
) -> None:
    store(database, wrong)
    plain, chain = Chain(), Chain()
    with vpps.Handle(plain.model, target="cpu", vps=2) as handle:
        expected = losses(plain, handle)
    with caplog.at_level(logging.INFO, "vpps"), vpps.Handle(chain.model, target="cpu") as handle:
        assert losses(chain, handle) == expected
        assert "tuned" not in handle.explain()
    assert "is given up" in caplog.text


def test_results_are_the_same_to_the_bit_with_another_tile() -> None:
    """The only tile besides the usual one that is compiled, here and in test_online.py."""
    from vpps.kernel.host_compiler import tile_of_machine
    from vpps.kernel.render import tiles_of

    results = []
    for tile in (None, tiles_of(tile_of_machine().isa)[1].name):
        chain = Chain()
        with vpps.Handle(chain.model, vpps.Adam(lr=0.01), target="cpu", vps=2) as handle:
            handle._configurator.configure(Configuration(vps=2, tile=tile))
            found = losses(chain, handle)
            assert handle._engine.machine.panel == tile_of_machine(tile).panel
        results.append((found, chain.W.numpy().tobytes()))
    assert results[0] == results[1]
