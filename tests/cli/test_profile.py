"""`vpps-profile`, in this process through Typer, and once as a user starts it; its evaluation of times."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import vpps
from tests.tuning.models import Chain
from vpps.cli.profile import Bench, Measured, app, best_of
from vpps.cli.workload import Workload
from vpps.tuning.candidates import Candidate

WORKLOAD = "tests.tuning.models:build"

Profile = Callable[..., Result]


@pytest.fixture
def choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path for the file of choices, which does not exist yet."""
    monkeypatch.setenv("VPPS_TUNING", str(tmp_path / "choices.json"))
    return tmp_path / "choices.json"


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch) -> Profile:
    """Run the command for a short time."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--batches", "1", "--rounds", "1"])

    return run


@pytest.mark.host
@pytest.mark.parametrize(
    "arguments, words",
    [
        (["tree-lstm", "--target", "cpu", "--precision", "tf32"], "target 'cpu' has no tensor cores"),
        (["tree-lstm", "--target", "cpu", "--precision", "U=bf16"], "there is no parameter 'U'"),
        (["tree-lsm"], "'tree-lsm' is not a task"),
        (["no_such_module:build"], "no_such_module"),
        (["tree-lstm"], "VPPS_TARGET=gpu: expected 'auto'"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_bad_input_is_answered_with_one_sentence(
    profile: Profile, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.setenv("VPPS_TARGET", "gpu")
    result = profile(*arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("vpps-profile: ")
    assert words in line


@pytest.mark.host
def test_wrong_usage_has_exit_code_2(profile: Profile) -> None:
    assert profile().exit_code == 2
    assert profile("tree-lstm", "--batch-size", "0").exit_code == 2
    assert profile("tree-lstm", "--target", "cpu", "--no-such-setting", "1").exit_code == 2


@pytest.mark.cpu
class TestOnCpu:
    @pytest.fixture(autouse=True)
    def _four_cores(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("vpps.tuning.candidates.usable_cores", lambda: 4)

    def test_measures_prints_and_keeps(self, profile: Profile, choices: Path) -> None:
        result = profile(WORKLOAD, "--target", "cpu", "--batch-size", "2")
        assert result.exit_code == 0, result.output
        title, headings, _, *rows, best = result.stdout.splitlines()
        assert title.startswith(f"{WORKLOAD}, batches of 2, training on cpu: ")
        assert headings.split() == ["configuration", "ms/batch", "x", "default"]
        assert [row.startswith("->") for row in rows] == [True, False, False, False]
        assert sum("default" in row for row in rows) == 1
        assert best.endswith(f"; kept for handles of this model in {choices}")
        (kept,) = json.loads(choices.read_text()).values()
        with vpps.Handle(Chain().model, target="cpu") as handle:
            assert "by vpps-profile" in handle.tuning
            assert kept["vps"] in (None, handle.vps)
            assert f"best: {handle.tuning.partition(' (')[0]}, " in best

    def test_keeps_nothing_where_told_so(self, profile: Profile, choices: Path) -> None:
        result = profile(WORKLOAD, "--target", "cpu", "--inference", "--no-store", "--precision", "W=bf16")
        assert result.exit_code == 0, result.output
        assert f"{WORKLOAD}, batches of 16, inference on cpu: " in result.stdout
        assert result.stdout.endswith("; not kept\n")
        assert not choices.exists()

    def test_what_was_measured_is_shown_even_if_it_cannot_be_kept(self, profile: Profile, choices: Path) -> None:
        choices.mkdir()
        result = profile(WORKLOAD, "--target", "cpu")
        assert result.exit_code == 1
        assert "ms/batch" in result.stdout
        assert result.stderr.endswith(f"{choices} cannot be written (Is a directory): set VPPS_TUNING\n")


def bench(chain: Chain, train: bool = True, batches: int = 2) -> Bench:
    kept = chain.batches()
    workload = Workload("chain", chain.model, "", lambda: iter(kept))
    return Bench(workload, {"target": "cpu", "precision": "float32"}, train, batches, warmup=1)


@pytest.mark.cpu
class TestMeasuring:
    def test_takes_turns_over_the_same_batches_and_weights(self) -> None:
        chain = Chain()
        before, told = chain.model.numpy(), []
        found = bench(chain).measure([Candidate(), Candidate(vps=1)], 3, lambda *at: told.append(at))
        assert [np.shape(m.times) for m in found] == [(3, 2)] * 2
        assert all(m.seconds == np.median(m.times) > 0 for m in found)
        assert told == [(k, 6) for k in range(1, 7)]
        assert all(np.array_equal(w, before[name]) for name, w in chain.model.numpy().items())

    def test_of_evaluation(self) -> None:
        (found,) = bench(Chain(), train=False, batches=9).measure([Candidate()], 1, lambda *_: None)
        assert np.shape(found.times) == (1, 3), "as many batches as there are"

    def test_what_does_not_run_says_why_and_the_others_go_on(self) -> None:
        found = bench(Chain()).measure([Candidate(vps=1), Candidate(groups=2)], 2, lambda *_: None)
        assert np.shape(found[0].times) == (2, 2)
        assert "target 'cpu' keeps weights" in found[1].reason
        with pytest.raises(vpps.HandleError, match="target 'cpu' keeps weights"):
            bench(Chain()).measure([Candidate(groups=2)], 1, lambda *_: None)

    @pytest.mark.simt
    def test_on_a_gpu_there_are_rows_per_warp(self) -> None:
        chain = Chain()
        on_gpu = Bench(bench(chain).workload, {"target": "simt", "precision": "float32"})
        found, key = on_gpu.candidates()
        assert {"groups 1", "groups 4", "rpw 1"} <= {candidate.describe() for candidate in found}
        assert key.device.startswith("simt: ")


def measured(vps: int, *turns: float) -> Measured:
    return Measured(Candidate(vps=vps), [[t, t] for t in turns])


@pytest.mark.host
class TestBest:
    DEFAULT = measured(9, 1.0, 1.0, 1.0, 9.0)

    def test_is_the_default_unless_something_is_clearly_faster(self) -> None:
        assert best_of([self.DEFAULT, measured(1, 0.99, 0.99, 0.99, 8.91)]) is self.DEFAULT
        faster, fastest = measured(1, 0.9, 0.9, 0.9, 8.1), measured(2, 0.8, 0.8, 0.8, 7.2)
        assert best_of([self.DEFAULT, faster, fastest]) is fastest
        assert best_of([self.DEFAULT, Measured(Candidate(vps=3), [[0.1, 0.1]], "it spills")]) is self.DEFAULT

    def test_is_faster_in_most_turns(self) -> None:
        """A candidate that was lucky in two turns is not chosen."""
        lucky = measured(1, 0.5, 0.5, 1.1, 10.0)
        assert lucky.seconds < self.DEFAULT.seconds
        assert best_of([self.DEFAULT, lucky]) is self.DEFAULT

    def test_compares_batches_with_themselves(self) -> None:
        """A batch of large graphs takes longer in any configuration."""
        default = Measured(Candidate(), [[1.0, 10.0, 30.0]] * 3)
        other = Measured(Candidate(vps=1), [[0.5, 9.0, 29.0], [0.5, 9.0, 29.0], [0.5, 9.5, 29.0]])
        assert other.ratio(default) == pytest.approx(10 / 9)
        assert best_of([default, other]) is other
