"""Handles and the file of choices: stored choices are used, and never cause failures."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

import vpps
from tests.tuning.models import Chain
from vpps.model.precisions import ALL_EXACT
from vpps.tuning.candidates import Candidate
from vpps.tuning.choices import Choice, keep, key_for

pytestmark = pytest.mark.cpu

Store = Callable[..., None]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Store a candidate for handles on the chain model."""
    with vpps.Handle(Chain().model, target="cpu") as handle:
        machine = handle._engine.machine
    monkeypatch.setenv("VPPS_TUNING", str(tmp_path / "choices.json"))

    def stored(candidate: Candidate, train: bool = True) -> None:
        keep(key_for(Chain().model, machine, train, ALL_EXACT), Choice(candidate, 1.25, "vpps-profile"))

    return stored


def losses(chain: Chain, handle: vpps.Handle) -> list[float]:
    found = []
    for graph, loss in chain.batches():
        handle.fb(graph, loss)
        found.append(handle.sync_get_latest_loss())
    return found


def test_a_handle_takes_over_what_was_found_and_says_so(store: Store) -> None:
    plain = Chain()
    with vpps.Handle(plain.model, target="cpu") as handle:
        expected = losses(plain, handle)
        assert (handle.tuning, "tuned" in handle.explain()) == ("", False)
    store(Candidate(vps=3))
    chain = Chain()
    with vpps.Handle(chain.model, target="cpu", policy="sinks-last") as handle:
        assert (handle.vps, handle.tuning) == (3, "vps 3 (by vpps-profile, 1.25x the default)")
        assert losses(chain, handle) == expected, "to the bit"
        (line,) = (line for line in handle.explain().splitlines() if line.startswith("tuned"))
        assert handle.tuning in line


def test_what_the_user_gives_wins(store: Store) -> None:
    store(Candidate(vps=3))
    with vpps.Handle(Chain().model, target="cpu", vps=1) as handle:
        assert (handle.vps, handle.tuning) == (1, "")
    with vpps.Handle(Chain().model, target="cpu", schedule="vector") as handle:
        assert (handle.vps != 3, handle.tuning) == (True, "")


def test_evaluation_has_choices_of_its_own(store: Store) -> None:
    store(Candidate(vps=3), train=True)
    store(Candidate(vps=4), train=False)
    chain = Chain()
    graph, loss = chain.batch()
    with vpps.Handle(chain.model, target="cpu", train=False, example=(graph, loss)) as handle:
        handle.forward(graph, [loss])
        assert handle.vps == 4


@pytest.mark.parametrize("wrong", [Candidate(vps=10**9), Candidate(groups=2)])
def test_what_cannot_be_had_any_more_is_given_up(
    store: Store, wrong: Candidate, caplog: pytest.LogCaptureFixture
) -> None:
    store(wrong)
    plain, chain = Chain(), Chain()
    with vpps.Handle(plain.model, target="cpu", vps=2) as handle:
        expected = losses(plain, handle)
    with caplog.at_level(logging.INFO, "vpps"), vpps.Handle(chain.model, target="cpu") as handle:
        assert losses(chain, handle) == expected
        assert handle.tuning == ""
    assert "is given up" in caplog.text
