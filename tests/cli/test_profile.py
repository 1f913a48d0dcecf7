"""`vpps-profile`, in this process through Typer, and once as a user would start it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import vpps
from vpps.cli.profile import app
from vpps.engine.configuration import Configuration
from vpps.model.precisions import Precisions
from vpps.tuning.compiling import Compiled
from vpps.tuning.database import TuningDatabase, choices_in

MAIN = [sys.executable, "-c", "from vpps.cli.profile import main; main()"]
WORKLOAD = """
import numpy as np
import vpps

H = 64


def build(batch_size):
    model = vpps.Model(seed=1)
    W = model.parameter("W", (H, H))

    @vpps.cell
    def step(h):
        return vpps.tanh(W @ h)

    def batch(length):
        graph = vpps.Graph()
        h = graph.input(np.ones(H))
        for _ in range(length * batch_size):
            h = step(h)
        return graph, vpps.sum(h)

    return model, [batch(2), batch(3)]
"""

Profile = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a workload of the test's own."""
    (tmp_path / f"{tmp_path.name}_net.py".replace("-", "_")).write_text(WORKLOAD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


@pytest.fixture
def workload(folder: Path) -> str:
    return f"{folder.name}_net:build".replace("-", "_")


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch) -> Profile:
    """Runs the command."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, arguments)

    return run


def failed(result: Result, *words: str) -> None:
    """One sentence on standard error, nothing else."""
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("vpps-profile: ")
    for word in words:
        assert word in line


@pytest.mark.host
class TestBadInput:
    @pytest.mark.parametrize(
        "options, words",
        [
            (["--axes", "speed"], ["axis 'speed'", "vps, tile, policy, passes, and all"]),
            (["--arch", "sm_90"], ["--arch", "--dry-run"]),
            (["--dry-run"], ["--dry-run", "target cpu"]),
            (["--precision", "tf32"], ["target 'cpu' has no tensor cores"]),
            (["--precision", "U=bf16"], ["there is no parameter 'U'", "tree_lstm/U"]),
            (["--output", "no/such/folder.json"], ["there is no folder no/such"]),
        ],
    )
    def test_is_answered_with_one_sentence(self, profile: Profile, options: list[str], words: list[str]) -> None:
        failed(profile("tree-lstm", "--target", "cpu", *options), *words)

    def test_of_a_workload(self, profile: Profile) -> None:
        failed(profile("tree-lsm"), "'tree-lsm' is no task", "tree-lstm", "module:function")
        failed(profile("no_such_module:build", "--target", "cpu"), "no_such_module")

    def test_of_an_architecture(self, profile: Profile, workload: str) -> None:
        failed(profile(workload, "--dry-run", "--arch", "sm90"), "sm_ and digits")

    @staticmethod
    def no_library() -> None:
        raise vpps.CompileError("there is no NVRTC: pip install 'vpps[cuda13]'")

    @pytest.mark.parametrize("arch, missing", [("sm_90", True), ("sm_199", False)])
    def test_what_nothing_can_be_compiled_for_is_told_at_once(
        self, profile: Profile, workload: str, monkeypatch: pytest.MonkeyPatch, arch: str, missing: bool
    ) -> None:
        """Once, and not for each candidate."""
        if missing:
            monkeypatch.setattr("vpps.kernel.nvrtc.library", self.no_library)
        else:
            monkeypatch.setattr("vpps.kernel.nvrtc.supported_archs", lambda: ("sm_75", "sm_90"))
        monkeypatch.setattr("vpps.profiling.profiler.Compilers", None)  # not even asked
        words = ["there is no NVRTC", "pip install"] if missing else [arch]
        failed(profile(workload, "--dry-run", "--arch", arch), *words)

    @pytest.mark.parametrize("some", [False, True])
    def test_a_dry_run_that_compiles_nothing_fails(
        self, profile: Profile, workload: str, monkeypatch: pytest.MonkeyPatch, some: bool
    ) -> None:
        rows = [Compiled(Configuration(), reason="no g++"), Compiled(Configuration(policy="depth"))]
        monkeypatch.setattr("vpps.profiling.profiler.dry_run", lambda *_: (rows if some else rows[:1], 0, 0))
        result = profile(workload, "--dry-run", "--target", "simt", "--json")
        assert len(json.loads(result.stdout)["archs"]) == 1
        assert result.exit_code == (0 if some else 1)
        assert ("nothing could be compiled for" in result.stderr) != some
        assert ("no g++" in result.stderr) != some

    def test_a_gpu_that_is_not_there(self, profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("vpps.runtime.driver.why_cuda_is_unusable", lambda: "target='cuda': there is no GPU")
        failed(profile("tree-lstm", "--target", "cuda"), "there is no GPU; with --dry-run")

    @pytest.mark.parametrize("target, words", [("simt", "on target simt"), ("gpu", "VPPS_TARGET=gpu: expected 'auto'")])
    def test_the_environment_names_the_target(
        self, profile: Profile, monkeypatch: pytest.MonkeyPatch, target: str, words: str
    ) -> None:
        monkeypatch.setenv("VPPS_TARGET", target)
        failed(profile("tree-lstm", "--axes", "speed"), words)

    def test_of_usage_has_exit_code_2(self, profile: Profile) -> None:
        assert profile().exit_code == 2
        assert profile("tree-lstm", "--batch-size", "0").exit_code == 2
        assert profile("tree-lstm", "--target", "cpu", "--no-such-setting", "1").exit_code == 2


@pytest.mark.host
def test_help_has_examples() -> None:
    run = subprocess.run([*MAIN, "--help"], capture_output=True, text=True, check=True, timeout=120)
    assert "vpps-profile tree-lstm --data trees --batch-size 16" in run.stdout
    assert "\x1b" not in run.stdout


@pytest.mark.cpu
class TestOnCpu:
    @pytest.fixture
    def database(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TuningDatabase:
        """Of the test's own; kernels come from where they are."""
        found = TuningDatabase(tmp_path / "tuning")
        for module in ("tuning.database", "profiling.profiler"):
            monkeypatch.setattr(f"vpps.{module}.TuningDatabase", lambda: found)
        return found

    def test_what_rounds_is_measured_and_kept_for_what_rounds(
        self, profile: Profile, workload: str, database: TuningDatabase
    ) -> None:
        result = profile(
            workload, "--target", "cpu", "--vps", "1", "--batches", "1", "--rounds", "1", "--candidates", "1",
            "--precision", "W=bf16", "--store",
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        assert "training, precision float32, bf16 in W on cpu: " in result.stdout
        (path,) = database.folder.iterdir()
        (choice,) = choices_in(path) or []
        assert choice.tuned.configuration == Configuration(vps=1, precision=Precisions.given({"W": "bf16"}))

    def test_measures_prints_and_keeps(
        self,
        profile: Profile,
        workload: str,
        folder: Path,
        database: TuningDatabase,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        result = profile(
            workload, "--target", "cpu", "--vps", "1", "--batches", "1", "--rounds", "1", "--candidates", "2",
            "--batch-size", "2", "--axes", "policy", "--store", "--json", "--output", "found.json",
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        title, headings, first, second, *rest = result.stdout.splitlines()
        assert title.startswith(f"{workload}, batches of 2, training on cpu: ")
        assert headings.split() == ["configuration", "ms/batch", "quartiles", "x", "default", "barriers"]
        assert {"policy depth" in first, "policy depth" in second} == {True, False}
        assert [line.startswith("->") for line in (first, second)].count(True) == 1
        assert "were left out, beyond --candidates" in "".join(rest)
        best, unsteady, undo = rest[-3:]
        assert best.startswith("best: ")
        assert best.endswith("; kept for handles of this model")
        assert unsteady == "One turn does not tell how much times vary: give it more --rounds."
        assert undo.startswith("Undo it: VPPS_TUNING=0 for one program, vpps-cache clear ")
        assert "vpps-profile: measured 2/2" in result.stderr

        found = json.loads((folder / "found.json").read_text())
        assert (
            found["workload"] | {"name": workload, "batch_size": 2, "train": True, "target": "cpu"}
            == (found["workload"])
        )
        assert [c["configuration"] for c in found["candidates"]] == [
            {"vps": 1} | passes for passes in _both(found["candidates"])
        ]
        assert all(c["seconds"] > 0 and c["barriers"] > 0 and c["reason"] is None for c in found["candidates"])
        assert found["candidates"][0]["ratio"] == 1.0
        assert sum(c["best"] for c in found["candidates"]) == 1

        monkeypatch.setenv("VPPS_TUNING", "1")
        from importlib import import_module

        model, batches = import_module(workload.split(":")[0]).build(2)
        with vpps.Handle(model, target="cpu") as handle:
            handle.fb(*batches[0])
            assert "by vpps-profile on" in handle.explain()

    def test_what_was_measured_is_shown_even_if_it_cannot_be_kept(
        self, profile: Profile, workload: str, database: TuningDatabase
    ) -> None:
        database.folder.write_text("")  # a file, where the folder should be
        result = profile(
            workload, "--target", "cpu", "--batches", "1", "--rounds", "1", "--candidates", "1", "--store", "--json"
        )  # fmt: skip
        assert result.exit_code == 1
        found = json.loads(result.stdout)
        assert found["stored"] is False
        assert found["candidates"][0]["seconds"] > 0
        assert "the tuning database" in result.stderr.splitlines()[-1]

    def test_keeps_nothing_unasked_where_times_tell_too_little(
        self, profile: Profile, workload: str, database: TuningDatabase
    ) -> None:
        result = profile(workload, "--target", "cpu", "--batches", "1", "--rounds", "1", "--candidates", "1")
        assert result.exit_code == 0, result.output
        best, unsteady = result.stdout.splitlines()[-2:]
        assert best.endswith("; not kept")
        assert unsteady.endswith("give it more --rounds; --store keeps it all the same.")
        assert not database.folder.exists()

    def test_keeps_nothing_where_told_so(
        self, profile: Profile, workload: str, folder: Path, database: TuningDatabase
    ) -> None:
        result = profile(
            workload, "--target", "cpu", "--inference", "--no-store", "--batches", "1", "--rounds", "1",
            "--candidates", "1", "--json",
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        assert (found["stored"], found["workload"]["train"]) == (False, False)
        assert not database.folder.exists()


def _both(candidates: list[dict[str, object]]) -> list[dict[str, object]]:
    """What tests switch off by environment, and the policy of the second one."""
    passes = {k: v for k, v in candidates[0]["configuration"].items() if k == "passes"}  # type: ignore[attr-defined]
    return [passes, {"policy": "depth"} | passes]


@pytest.mark.nvrtc
class TestDryRun:
    def test_compiles_candidates_for_every_architecture(self, profile: Profile, workload: str) -> None:
        result = profile(
            workload, "--dry-run", "--arch", "sm_75", "--arch", "sm_120", "--candidates", "2", "--json",
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        archs = json.loads(result.stdout)["archs"]
        assert list(archs) == ["sm_75", "sm_120"]
        for found in archs.values():
            default, other = found["candidates"]
            assert (default["description"], other["description"]) == ("default", "rpw 1")
            for candidate in (default, other):
                assert candidate["reason"] is None
                assert 0 < candidate["resources"]["registers"] <= 255
                assert candidate["resources"]["spill_stores"] == candidate["resources"]["stack"] == 0
                assert candidate["resources"]["code_bytes"] > 10_000
                assert candidate["barriers"] > 0
                assert candidate["tiers"].keys() == {"W", "W^T"}
        assert "vpps-profile: compiled for sm_120 2/2" in result.stderr

    def test_is_a_table_without_json(self, profile: Profile, workload: str, folder: Path) -> None:
        """Of kernels that are in the cache by now."""
        arguments = (workload, "--dry-run", "--arch", "sm_75", "--candidates", "2")
        result = profile(*arguments, "--output", "table.txt")
        assert result.exit_code == 0, result.output
        title, headings, default, other, *rest = result.stdout.splitlines()
        assert title.strip() == f"{workload}, batches of 16, training: kernels for sm_75 (T4)"
        assert headings.split() == (
            "configuration registers spilled stack shared code seconds barriers weights".split()
        )
        assert default.split()[0] == "default"
        assert other.split()[:2] == ["rpw", "1"]
        assert "W, W^T registers" in default
        assert "beyond --candidates" in "".join(rest)
        assert "kernels for sm_75 (T4)" in (folder / "table.txt").read_text()

    def test_ends_at_once_at_ctrl_c_with_its_compilers(self, workload: str, folder: Path, tmp_path: Path) -> None:
        environment = os.environ | {"VPPS_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": _root()}
        process = subprocess.Popen(
            [*MAIN, workload, "--dry-run", "--arch", "sm_90", "--jobs", "1"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=folder,
        )  # fmt: skip
        children: set[int] = set()
        while not children and process.poll() is None:
            children = _children(process.pid)
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out) == (130, ""), err
        assert err.splitlines()[-1].startswith("vpps-profile: interrupted")
        assert "Traceback" not in err
        assert children
        assert not list((tmp_path / "cache").rglob("*.so")), "it waited until the planner was compiled"
        assert not any(Path(f"/proc/{child}").exists() for child in children)


def _root() -> str:
    return str(Path(vpps.__file__).parents[1])


def _children(pid: int) -> set[int]:
    """Processes that a process has started, by any of its threads."""
    tasks = Path(f"/proc/{pid}/task")
    try:
        return {int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()}
    except OSError:
        return set()
