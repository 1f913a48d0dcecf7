"""`vpps-inspect trace` through its entry point: files, summary, wrong use told in a sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from vpps.cli.inspect import app

SMALL = ("--hidden", "16", "--embedding", "8", "--batch-size", "2")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["trace", *arguments])


@pytest.mark.cpu
class TestTrace:
    def test_writes_launches_and_a_summary(self, tmp_path: Path) -> None:
        program = "from vpps.cli.inspect import main; main()"
        found = subprocess.run(
            [sys.executable, "-c", program, "trace", "tree-lstm", *SMALL, "--steps", "2", "--target", "cpu",
             "-o", "step.json"],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (found.returncode, found.stderr) == (0, "")
        assert found.stdout.startswith("2 launches on cpu, ")
        assert "\x1b" not in found.stdout
        for part in ("critical path", "most expensive cells", "TreeLSTMSentiment.inner"):
            assert part in found.stdout
        launches = [
            event["name"]
            for event in json.loads((tmp_path / "step.json").read_text())["traceEvents"]
            if event.get("cat") == "launch"
        ]
        assert launches == ["launch 1", "launch 2"]

    def test_of_inference_has_no_update(self) -> None:
        found = run("tree-lstm", *SMALL, "--target", "cpu", "--steps", "1", "--vps", "2", "--inference")
        assert found.exit_code == 0, found.output
        assert found.stdout.startswith("1 launch on cpu, 2 virtual processors: ")
        assert " update 0.0 % " in found.stdout

    def test_takes_a_function_of_few_batches(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "own_batches.py").write_text(
            "import vpps\n"
            "def batches(size):\n"
            "    model = vpps.Model(seed=1)\n"
            "    W = model.parameter('W', (4, 4))\n"
            "    graph = vpps.Graph()\n"
            "    return model, [(graph, vpps.sum(W @ graph.input([1.0] * 4)))]\n"
        )
        monkeypatch.chdir(tmp_path)
        found = run("own_batches:batches", "--target", "cpu", "--steps", "2")
        assert found.exit_code == 0, found.output
        assert found.stdout.startswith("2 launches on cpu, ")


@pytest.mark.host
class TestWrongUse:
    @pytest.mark.parametrize(
        "arguments, said",
        [
            (("tree-lst",), "'tree-lst' is no task"),
            (("tree-lstm", "-o", "/nowhere/at/all.json"), "there is no folder /nowhere/at"),
            (("tree-lstm", "--target", "cpu", "--policy", "breadth"), "policy='breadth': expected one of"),
            (("tree-lstm", "--target", "cpu", "--hiden", "3"), "No such option: --hiden"),
        ],
    )
    def test_is_told_in_a_sentence(self, arguments: tuple[str, ...], said: str) -> None:
        found = run(*arguments)
        assert found.exit_code in (1, 2)
        assert said in found.output
        assert "Traceback" not in found.output

    def test_help_has_examples(self) -> None:
        found = run("--help")
        assert found.exit_code == 0
        assert "vpps-inspect trace tree-lstm --batch-size 16" in found.output
