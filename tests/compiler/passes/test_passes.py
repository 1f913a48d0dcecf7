"""Switches of the cell compiler, by argument and by environment."""

import pytest

import vpps
from vpps.compiler.passes import Passes


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", Passes()),
        ("all", Passes()),
        ("-fusion, -streaming", Passes(fusion=False, streaming=False)),
        ("none,fusion", Passes(horizontal=False, lazy_batching=False, streaming=False)),
    ],
)
def test_environment_switches_passes(monkeypatch, text, expected):
    monkeypatch.setenv("VPPS_PASSES", text)
    assert Passes.from_environment() == expected


@pytest.mark.parametrize("name", ["fussion", "constants"])
def test_unknown_pass_is_named(monkeypatch, name):
    monkeypatch.setenv("VPPS_PASSES", f"-{name}")
    with pytest.raises(vpps.HandleError, match=rf"VPPS_PASSES=-{name}: '{name}' is not a pass.*lazy_batching"):
        vpps.Handle(vpps.Model())


def test_handle_refuses_what_is_no_passes():
    with pytest.raises(vpps.HandleError, match=r"passes='all': expected vpps.Passes"):
        vpps.Handle(vpps.Model(), passes="all")
