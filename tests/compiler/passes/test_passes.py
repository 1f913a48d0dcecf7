"""Switches of the cell compiler: by argument and by environment."""

import pytest

import vpps
from vpps.compiler.passes import Passes


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", Passes()),
        ("all", Passes()),
        ("-fusion, -streaming", Passes(fusion=False, streaming=False)),
        ("none,fusion", Passes(*[False] * 5, True, False, False, False)),
        ("recompute", Passes(recompute=True)),
    ],
)
def test_environment_switches_passes(monkeypatch, text, expected):
    monkeypatch.setenv("VPPS_PASSES", text)
    assert Passes.from_environment() == expected


def test_unknown_pass_is_named(monkeypatch):
    monkeypatch.setenv("VPPS_PASSES", "-fussion")
    with pytest.raises(vpps.HandleError, match=r"VPPS_PASSES=-fussion: 'fussion' is no pass.*lazy_batching"):
        vpps.Handle(vpps.Model())


def test_handle_refuses_what_is_no_passes():
    with pytest.raises(vpps.HandleError, match=r"passes='all': expected vpps.Passes"):
        vpps.Handle(vpps.Model(), passes="all")
