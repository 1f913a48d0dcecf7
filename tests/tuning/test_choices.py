"""The file of fastest choices: its answers, and calls without a usable file."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tuning.models import Chain
from vpps.model.precisions import Precisions
from vpps.ops.precision import PRECISIONS
from vpps.tuning import choices
from vpps.tuning.candidates import Candidate
from vpps.tuning.choices import Choice, Key, choices_file, find, keep, key_for

pytestmark = pytest.mark.host

KEY = Key("cpu: a processor, 2 cores, avx2", "model", True)
CHOICE = Choice(Candidate(vps=1), 1.5, "vpps-profile")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a path at which there is no file or folder."""
    found = tmp_path / "some/choices.json"
    monkeypatch.setenv("VPPS_TUNING", str(found))
    return found


@pytest.mark.parametrize("candidate", [Candidate(), Candidate(vps=3), Candidate(groups=2), Candidate(rpw=2)])
def test_gives_what_was_kept(path: Path, candidate: Candidate) -> None:
    assert find(KEY) is None
    choice = replace(CHOICE, candidate=candidate)
    assert keep(KEY, choice) == path
    assert find(KEY) == choice
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_keeps_choices_of_others_and_replaces_its_own(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [Key("cpu: another", "model", True), replace(KEY, model="x"), replace(KEY, train=False)]
    for n, key in enumerate([*others, KEY, KEY], 2):
        keep(key, replace(CHOICE, candidate=Candidate(vps=n)))
    assert [found.candidate.vps for key in (*others, KEY) if (found := find(key))] == [2, 3, 4, 6]
    monkeypatch.setattr(choices, "__version__", "another")
    assert find(KEY) is None


def test_is_in_the_cache_directory_unless_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VPPS_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("VPPS_TUNING")
    assert choices_file() == tmp_path / "tuning.json"
    for off in ("0", "off", "No"):
        monkeypatch.setenv("VPPS_TUNING", off)
        assert (choices_file(), keep(KEY, CHOICE), find(KEY)) == (None, None, None)
    assert list(tmp_path.iterdir()) == []


DAMAGED = [
    *("", "{", "[1]", "3", "[" * 100_000, "\0" * 50),
    *(("vps", "3"), ("vps", -3), ("vps", True), ("groups", 0), ("rpw", 1.5)),
    *(("ratio", 10**400), ("ratio", None), ("ratio", float("nan"))),
]


@pytest.mark.parametrize("damage", DAMAGED, ids=lambda damage: str(damage)[:20])
def test_what_is_damaged_is_not_used_and_made_anew(
    path: Path, damage: str | tuple[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    keep(KEY, CHOICE)
    if isinstance(damage, str):
        path.write_text(damage)
    else:
        contents = json.loads(path.read_text())
        (kept,) = contents.values()
        kept[damage[0]] = damage[1]
        path.write_text(json.dumps(contents))
    assert find(KEY) is None
    assert "is damaged and not used" in caplog.text
    keep(KEY, CHOICE)
    assert find(KEY) == CHOICE


def test_what_cannot_be_written_is_an_error_of_the_system(path: Path) -> None:
    keep(KEY, CHOICE)
    path.parent.rename(path.parent.with_name("other"))
    path.parent.write_text("")
    with pytest.raises(OSError, match="File exists"):
        keep(KEY, CHOICE)


CPU: Any = SimpleNamespace(target="cpu", arch="avx2", device=None)


class TestKey:
    def test_is_the_same_in_every_process(self) -> None:
        program = (
            "from tests.tuning.test_choices import *\n"
            "print(key_for(Chain(seed=5).model, CPU, True, Precisions('float32')).digest)"
        )
        run = subprocess.run(
            [sys.executable, "-c", program], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
        )
        assert run.stdout.strip() == key_for(Chain().model, CPU, True, Precisions("float32")).digest

    def test_differs_with_names_and_what_is_trained(self) -> None:
        frozen = Chain()
        frozen.W.trainable = False
        found = [key_for(chain.model, CPU, True, Precisions("float32")) for chain in (Chain(), Chain("V"), frozen)]
        assert len({key.digest for key in found}) == 3

    def test_differs_with_what_products_round(self) -> None:
        """Any spelling of the precision gives the same key."""
        chain = Chain()
        others = [p.name for p in chain.model if len(p.shape) != 2]

        def key(precision: str | dict[str, str]) -> Key:
            return key_for(chain.model, CPU, True, Precisions.given(precision))

        assert key("bf16") == key({"W": "bf16"}) == key({"*": "bf16"} | dict.fromkeys(others, "float32"))
        assert len({key(name).digest for name in PRECISIONS}) == len(PRECISIONS)


def test_a_choice_describes_itself() -> None:
    assert CHOICE.describe() == "vps 1 (by vpps-profile, 1.50x the default)"
    assert Choice(Candidate(rpw=2), 1.13, "autotune").describe() == "rpw 2 (by autotune, 1.13x the default)"
    assert Choice(Candidate(), 1.0, "autotune").describe() == "default (by autotune)"
