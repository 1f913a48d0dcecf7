"""`vpps-data`, in this process through Typer, or in a separate process where that matters."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from vpps.cli.data import app
from vpps.data import GraphSet
from vpps.text import counted

pytestmark = pytest.mark.host

MAIN = "from vpps.cli.data import main; main()"
Run = Callable[..., Result]


@pytest.fixture
def vpps_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in a folder with a few text files."""
    for name, text in {
        "train.txt": "(3 (2 good) (4 (3 good) (2 film)))\n(1 (2 good) (2 film))\n",
        "dev.txt": "(1 film)\n(0 bad)\n",
        "tagged.txt": "a|X b|Y\n",
        "en.txt": "a b\n\nc\n",
        "vi.txt": "x\ny\nz z\n",
        "weibo.txt": "1\n2\n0 5\n0\n1 0 8\n",
        "dags.jsonl": '{"children": [[], [0]], "columns": {"op": ["in", "out"]}}\n',
        "wrong.txt": "(3 (2 a) b)\n",
    }.items():
        (tmp_path / name).write_text(text)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(app, arguments, prog_name="vpps-data")


def process(*arguments: str, before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the program in a separate process."""
    command = [sys.executable, "-c", before + MAIN, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, timeout=120)


class TestConvert:
    @pytest.mark.parametrize(
        "arguments, graphs, vertices",
        [
            (["trees", "train.txt"], 2, 8),
            (["trees", "train.txt", "dev.txt"], 4, 10),
            (["trees", "train.txt", "--lists", "--min-count", "1"], 2, 8),
            (["tagged", "tagged.txt"], 1, 2),
            (["text", "en.txt"], 2, 5),
            (["text", "en.txt", "--no-targets"], 2, 3),
            (["lattice", "weibo.txt"], 1, 1),
            (["lattice", "weibo.txt", "--min-count", "1"], 1, 1),
            (["jsonl", "dags.jsonl", "--fixed", "--classes", "op"], 1, 2),
        ],
        ids=lambda x: " ".join(x) if isinstance(x, list) else None,
    )
    def test_writes_what_the_reader_returns(
        self, arguments: list[str], graphs: int, vertices: int, vpps_data: Run, tmp_path: Path
    ) -> None:
        options = [
            x for k, x in enumerate(arguments) if x.startswith("--") or arguments[k - 1] in ("--min-count", "--classes")
        ]
        files = [x for x in arguments if x not in options]
        result = vpps_data("convert", *files, "out.graphs", *options)
        assert result.exit_code == 0, result.stderr
        assert result.stdout.startswith(
            f"out.graphs: {counted(graphs, 'graph')}, {counted(vertices, 'vertex', 'vertices')}, "
        )
        found = GraphSet.load(tmp_path / "out.graphs", verify=True)
        assert (len(found), found.n_vertices) == (graphs, vertices)

    def test_development_data_is_like_training(self, vpps_data: Run, tmp_path: Path) -> None:
        vpps_data("convert", "trees", "train.txt", "train.graphs")
        assert vpps_data("convert", "trees", "dev.txt", "dev.graphs", "--like", "train.graphs").exit_code == 0
        assert GraphSet.load(tmp_path / "dev.graphs")[:]["word"].tolist() == [2, 0]

    def test_parallel_text_becomes_two_files(self, vpps_data: Run, tmp_path: Path) -> None:
        result = vpps_data("convert", "parallel", "en.txt", "vi.txt", "en.graphs", "--target-output", "vi.graphs")
        assert result.exit_code == 0, result.stderr
        assert len(result.stdout.splitlines()) == 2
        assert GraphSet.load(tmp_path / "en.graphs").sizes.tolist() == [2, 1]
        assert GraphSet.load(tmp_path / "vi.graphs").sizes.tolist() == [2, 3]
        again = vpps_data(
            "convert", "parallel", "en.txt", "vi.txt", "en2.graphs", "--target-output", "vi2.graphs",
            "--like", "en.graphs", "--target-like", "vi.graphs",
        )  # fmt: skip
        assert again.exit_code == 0, again.stderr

    def test_graphs_are_replaced_and_other_files_are_not(self, vpps_data: Run, tmp_path: Path) -> None:
        for _ in range(2):
            assert vpps_data("convert", "trees", "train.txt", "out.graphs").exit_code == 0
        result = vpps_data("convert", "trees", "train.txt", "dev.txt")  # the output argument is missing
        assert result.exit_code == 1
        assert result.stderr.startswith("vpps-data: dev.txt: exists and holds no graphs, so it is not replaced")
        assert (tmp_path / "dev.txt").read_text() == "(1 film)\n(0 bad)\n"

    def test_full_disk_is_one_sentence_and_exit_code_1(self, vpps_data: Run, tmp_path: Path) -> None:
        limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)); "
        before = sorted(tmp_path.iterdir())
        arguments = "convert", "trees", "train.txt", "out.graphs"
        result = process(*arguments, before=limit, PYTHONDONTWRITEBYTECODE="1")
        assert result.returncode == 1
        assert result.stderr.startswith("vpps-data: out.graphs: cannot be written (")
        assert len(result.stderr.splitlines()) == 1
        assert sorted(tmp_path.iterdir()) == before

    @pytest.mark.parametrize(
        "arguments, code, message",
        [
            (["trees", "none.txt", "out"], 1, "none.txt: cannot be read: No such file or directory"),
            (["trees", "wrong.txt", "out"], 1, "wrong.txt:1:10: expected ')' or '(' after a child, found 'b'"),
            (["tagged", "en.txt", "out"], 1, "en.txt:1: expected word|TAG as token 1, found 'a'"),
            (["trees", "dev.txt", "out", "--like", "train.txt"], 1, "train.txt: not a file of graphs, or truncated"),
            (["trees", "dev.txt", "none/out"], 1, "none/out: there is no folder none"),
            (["trees", "dev.txt"], 2, "Missing argument"),
            (["penn", "dev.txt", "out"], 2, "'penn' is not one of"),
            (["lattice", "weibo.txt", "out", "--lists"], 2, "--lists: does not apply to lattice"),
            (["trees", "dev.txt", "out", "--min-count", "0"], 2, "--min-count"),
            (["text", "en.txt", "out", "--fixed"], 2, "--lists: does not apply to text"),
            (["parallel", "en.txt", "vi.txt", "out"], 2, "--target-output: parallel text needs a file for the second"),
            (["parallel", "en.txt", "out", "--target-output", "x"], 2, "parallel text has two inputs"),
            (["parallel", "en.txt", "vi.txt", "out", "--target-output", "out"], 2, "is also OUTPUT"),
            (["parallel", "en.txt", "vi.txt", "out", "--target-output", "x", "--like", "y"], 2, "needs both --like an"),
        ],
    )
    def test_wrong_input_and_usage_are_told(
        self, arguments: list[str], code: int, message: str, vpps_data: Run, tmp_path: Path
    ) -> None:
        result = vpps_data("convert", *arguments)
        assert result.exit_code == code
        assert message in result.stderr
        if code == 1:
            assert result.stderr.startswith(f"vpps-data: {message}")
            assert len(result.stderr.splitlines()) == 1
        assert not (tmp_path / "out").exists()


class TestStat:
    @pytest.fixture
    def file(self, vpps_data: Run) -> str:
        vpps_data("convert", "trees", "train.txt", "out.graphs")
        return "out.graphs"

    def test_says_what_the_file_holds(self, file: str) -> None:
        result = process("stat", file, FORCE_COLOR="1")
        assert result.returncode == 0, result.stderr
        assert "\x1b" not in result.stdout
        lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
        assert lines == [
            "out.graphs",
            "graphs 2",
            "vertices 8, 3 to 5, mean 4.0 per graph",
            "edges 6",
            "levels 2 to 3, mean 2.5 per graph",
            "children room for 2, 0 to 2, mean 0.8 per vertex",
            "readers at most 1 per vertex",
            "kinds 5 leaf, 3 inner",
            "column word int32 per vertex, -1 to 2, 3 words",
            "column label int32 per vertex, 1 to 4",
            "bytes 192 B",
        ]

    def test_damage_is_found_by_verifying(self, file: str, vpps_data: Run, tmp_path: Path) -> None:
        content = bytearray((tmp_path / file).read_bytes())
        content[-1] ^= 1
        (tmp_path / file).write_bytes(content)
        result = vpps_data("stat", file, "--verify")
        assert result.exit_code == 1
        assert result.stderr.startswith("vpps-data: out.graphs: damaged: the checksum of ")
