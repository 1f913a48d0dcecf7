"""`vpps-inspect`: every command, on a small user network: in a pipe, on a terminal, and with bad input."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from vpps.cli.inspect import app
from vpps.report.inspection import cpu_source

pytestmark = pytest.mark.host

NETWORK = """
import vpps

def build(batch_size):
    model = vpps.Model(seed=1)
    E = model.lookup("words", (9, 8))
    W, b = model.parameter("W", (8, 16)), model.parameter("b", (8,))

    @vpps.cell
    def node(left, right):
        return vpps.tanh(W @ vpps.concat([left, right]) + b)

    def batches():
        while True:
            graph = vpps.Graph()
            roots = []
            for _ in range(batch_size):
                a, b, c = (graph.lookup(E, k) for k in range(3))
                roots.append(node(node(a, b), c))
            yield graph, vpps.sum([vpps.sum(root) for root in roots])

    return model, batches()

def one(batch_size):
    model, batches = build(batch_size)
    return model, [next(batches)]
"""
WORKLOAD = "inspected_network:build"
COMMANDS = ("source", "asm", "ptx", "sass", "resources", "plan", "script", "cell", "graph", "trace")
MAIN = [sys.executable, "-c", "from vpps.cli.inspect import main; main()"]
ESCAPE = "\x1b"


class Result(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a working directory with a module that builds a network."""
    (tmp_path / "inspected_network.py").write_text(NETWORK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "inspected_network", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("VPPS_TARGET", "cpu")
    monkeypatch.setenv("VPPS_PASSES", "all")
    return tmp_path


@pytest.fixture
def run(folder: Path) -> Run:
    """Run a command in the test process."""

    def call(*arguments: str) -> Result:
        result = CliRunner().invoke(app, arguments, prog_name="vpps-inspect")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert ESCAPE not in result.stdout + result.stderr
        return Result(result.exit_code, result.stdout, result.stderr)

    return call


def output(result: Result) -> str:
    assert result.code == 0, result.err
    assert result.err == ""
    return result.out


class TestHelp:
    @pytest.mark.parametrize("command", COMMANDS)
    def test_has_examples_with_known_options(self, run: Run, command: str) -> None:
        text = output(run(command, "--help"))
        options, examples = re.split(r"(?m)^ *Examples *$", text)
        lines = [line.strip() for line in examples.splitlines() if "vpps-inspect" in line]
        assert len(lines) >= 2
        assert all(f"vpps-inspect {command}" in line for line in lines)
        given = {option for line in lines for option in re.findall(r"(?<= )--[a-z-]+", line.partition("|")[0])}
        assert given - {"--hidden"} <= set(re.findall(r"--[a-z-]+", options))

    def test_lists_the_commands(self, run: Run) -> None:
        text = output(run("--help"))
        assert all(re.search(rf"\b{command}\b", text) for command in COMMANDS)


class TestPlan:
    def test_counts_the_batch(self, run: Run) -> None:
        text = output(run("plan", WORKLOAD, "--batch-size", "3", "--vps", "2"))
        assert "training, policy sinks-last, schedule vector, 2 virtual processors" in text
        assert f"graph     {3 * (3 + 2 + 1) + 1} vertices of " in text

    def test_of_a_gpu_that_is_not_there(self, run: Run) -> None:
        text = output(run("plan", WORKLOAD, "--arch", "sm_75", "--inference"))
        assert "inference, policy sinks-last, schedule vector, 40 virtual processors" in text

    def test_goes_to_a_file(self, run: Run, folder: Path) -> None:
        assert output(run("plan", WORKLOAD, "-o", "plan.txt")) == ""
        assert (folder / "plan.txt").read_text().startswith("plan ")

    def test_of_a_task_takes_its_settings(self, run: Run) -> None:
        for hidden in (8, 16):
            text = output(run("plan", "tree-lstm", "--hidden", str(hidden), "--batch-size", "2"))
            assert re.search(rf"tanh +\d+ x {hidden} ", text)


class TestScript:
    def test_of_one_virtual_processor(self, run: Run) -> None:
        text = output(run("script", WORKLOAD, "--schedule", "paper", "--vps", "3", "--vp", "1", "--first", "2"))
        assert text.count("; virtual processors") == 1
        assert "; virtual processors 1, from word" in text
        assert re.search(r"; \.\.\. and \d+ instructions more", text)
        assert "of cell 'node'" in output(run("script", WORKLOAD))


class TestCell:
    def test_shows_stages_and_tails(self, run: Run) -> None:
        text = output(run("cell", WORKLOAD, "--name", "node"))
        stages = [line.partition(":")[0] for line in text.splitlines() if re.match(r"\w+: ", line)]
        assert stages[:4] == ["traced", "constants", "common_subexpressions", "horizontal"]
        assert {*stages[4:]} == {"lowered", "fused"}
        assert "= 'W' @ n" in text


class TestGraph:
    def test_is_for_graphviz_by_default(self, run: Run) -> None:
        assert output(run("graph", WORKLOAD)).startswith("digraph")

    def test_suffix_says_what_is_written(self, run: Run, folder: Path) -> None:
        for name in ("g.dot", "g.svg", "g.txt"):
            output(run("graph", WORKLOAD, "--examples", "2", "-o", name))
        assert (folder / "g.dot").read_text().startswith("digraph")
        assert ElementTree.parse(folder / "g.svg").getroot().tag.endswith("svg")
        assert (folder / "g.txt").read_text().startswith("13 vertices in 5 levels")

    def test_of_the_first_calls(self, run: Run) -> None:
        assert "... and 3 vertices more" in output(run("graph", WORKLOAD, "--calls", "4", "--format", "text"))


@pytest.mark.cpu
class TestTrace:
    def test_writes_launches_and_a_summary(self, run: Run, folder: Path) -> None:
        text = output(run("trace", WORKLOAD, "--steps", "2", "--batch-size", "2", "-o", "step.json"))
        assert text.startswith("2 launches on cpu, ")
        for part in ("critical path", "most expensive cells", "node"):
            assert part in text
        events = json.loads((folder / "step.json").read_text())["traceEvents"]
        assert [e["name"] for e in events if e.get("cat") == "launch"] == ["launch 1", "launch 2"]

    def test_of_inference_has_no_update(self, run: Run) -> None:
        small = ("--hidden", "16", "--embedding", "8", "--batch-size", "2")
        text = output(run("trace", "tree-lstm", *small, "--steps", "1", "--vps", "2", "--inference"))
        assert text.startswith("1 launch on cpu, 2 virtual processors: ")
        assert " update 0.0 % " in text

    def test_takes_a_function_of_few_batches(self, run: Run) -> None:
        assert output(run("trace", "inspected_network:one", "--steps", "2")).startswith("2 launches on cpu, ")


class TestSource:
    def test_in_a_pipe_is_what_the_compiler_gets(self, run: Run) -> None:
        assert output(run("source")) == cpu_source()
        lines = cpu_source().splitlines()
        assert output(run("source", "--lines", "120:122")).splitlines() == lines[119:122]
        assert output(run("source", "--lines", ":2", "--numbers")).startswith("      1 | ")
        assert output(run("source", "--lines", "7")).splitlines() == lines[6:7]

    def test_that_rounds_is_another_one(self, run: Run) -> None:
        rounds = cpu_source(rounds=True)
        assert output(run("source", "--precision", "bf16")) == rounds != cpu_source()
        assert output(run("source", WORKLOAD, "--precision", "bf16")) == rounds

    def test_of_a_gpu_is_of_the_model(self, run: Run) -> None:
        text = output(run("source", WORKLOAD, "--arch", "sm_90", "--no-compile", "--named"))
        assert "target cuda" in text
        assert '#include "cuda/matrix.cuh"' in text

    def test_of_tails(self, run: Run) -> None:
        assert "struct Tail_" in output(run("source", "tree-lstm", "--hidden", "8", "--tails"))

    def test_on_a_terminal_has_colours_and_numbers(self, folder: Path) -> None:
        arguments = [*MAIN, "source", "--target", "cpu", "--lines", "22:23"]
        environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        ours, theirs = pty.openpty()
        with subprocess.Popen(arguments, stdout=theirs, env=environment) as process:
            os.close(theirs)
            shown = b""
            while chunk := _read(ours):
                shown += chunk
        os.close(ours)
        assert process.returncode == 0
        plain = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode())
        assert ESCAPE in shown.decode()
        assert [line.split()[0] for line in plain.splitlines() if line.strip()] == ["22", "23"]


def _read(terminal: int) -> bytes:
    """Return the next bytes; empty at the end."""
    try:
        return os.read(terminal, 4096)
    except OSError:  # all writers have closed it
        return b""


def test_in_a_pipe_nothing_is_coloured_whatever_the_environment_asks_for(folder: Path) -> None:
    environment = {**os.environ, "FORCE_COLOR": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for arguments in (["source", "--lines", ":9"], ["plan", WORKLOAD], ["trace", WORKLOAD, "--steps", "1"]):
        done = subprocess.run([*MAIN, *arguments], capture_output=True, text=True, env=environment, check=True)
        assert done.stdout
        assert ESCAPE not in done.stdout


class TestErrors:
    def test_a_drawing_of_an_unknown_kind_is_not_written(self, run: Run, tmp_path: Path) -> None:
        code, _, err = run("graph", WORKLOAD, "-o", str(tmp_path / "tree.png"))
        assert code == 2
        assert "name it .svg, .dot, .gv, .txt" in " ".join(err.split())
        assert not (tmp_path / "tree.png").exists()

    @pytest.mark.parametrize(
        "arguments, words",
        [
            (["plan", "inspected_network:missing"], "has no function 'missing'"),
            (["plan", WORKLOAD, "--policy", "widest"], "policy='widest': expected one of sinks-last, depth, agenda"),
            (["plan", WORKLOAD, "--precision", "fp8"], "--precision fp8: expected one of float32, bf16, tf32, 3xtf32"),
            (["plan", WORKLOAD, "--precision", "bf16,tf32"], "--precision bf16,tf32: one for all, then MATRIX="),
            (["plan", WORKLOAD, "--precision", "bf16,W2=float32"], "there is no parameter 'W2'; "),
            (["plan", WORKLOAD, "--precision", "tf32"], "target 'cpu' has no tensor cores"),
            (["plan", WORKLOAD, "--precision", "bf16", "--arch", "sm_75"], "T4 is sm_75, and this takes tensor cores"),
            (["plan", WORKLOAD, "--arch", "sm_60"], "arch='sm_60': no GPU of that generation is known here"),
            (["plan", WORKLOAD, "--arch", "sm_91"], "arch='sm_91': there is no such GPU; its generation has"),
            (["plan", WORKLOAD, "-o", "nowhere/x.txt"], "nowhere/x.txt cannot be written"),
            (["script", WORKLOAD, "--vps", "2", "--vp", "2"], "there is no virtual processor 2: expected 0 to 1"),
            (["cell", WORKLOAD, "--name", "gate"], "there is no cell 'gate' in the graph; there are "),
            (["trace", WORKLOAD, "-o", "/nowhere/at/all.json"], "there is no folder /nowhere/at"),
            (["source", "--target", "cuda"], "name a task or module:function"),
            (["source", "--lines", "99999:"], "there is no line 99999: the source has lines 1 to "),
            (["source", WORKLOAD, "--target", "simt", "--no-compile", "--tails"], "has them in the kernel"),
            (["resources", WORKLOAD, "--arch", "sm_9"], "arch='sm_9'"),
        ],
    )
    def test_are_one_sentence(self, run: Run, arguments: list[str], words: str) -> None:
        code, out, err = run(*arguments)
        assert (code, out) == (1, "")
        assert err.startswith("vpps-inspect: ")
        assert words in err
        assert err.count("\n") == 1

    @pytest.mark.parametrize(
        "arguments, words",
        [
            (["plan"], "Missing argument 'WORKLOAD'"),
            (["source", "--lines", "a:b"], "expected FIRST:LAST, such as 120:160"),
            (["plan", WORKLOAD, "--target", "cpu", "--arch", "sm_90"], "does not apply to target cpu"),
            (["graph", WORKLOAD, "--format", "png"], "'png' is not one of 'dot', 'svg', 'text'"),
            (["plan", "tree-lstm", "--hiden", "8"], "No such option: --hiden"),
        ],
    )
    def test_of_usage_have_exit_code_2(self, run: Run, arguments: list[str], words: str) -> None:
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert words in err
