"""Finding the workload of `vpps-profile` and `vpps-inspect` by name."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import typer

import vpps
from vpps.cli.workload import MOST_KEPT, load_workload

pytestmark = pytest.mark.host

UsageError = typer.BadParameter.__base__
"""Class of Click, or of its copy in newer versions of Typer."""

FUNCTIONS = """
import vpps
NUMBER = 3
def chain(batch_size):
    model = vpps.Model()
    W = model.parameter("W", (4, 4))
    def batches():
        while True:
            graph = vpps.Graph()
            yield graph, vpps.sum([vpps.sum(W @ graph.zeros(4)) for _ in range(batch_size)])
    return model, batches()
def one(batch_size):
    model, batches = chain(batch_size)
    return model, [next(batches)]
def no_scalar(batch_size):
    model, batches = chain(batch_size)
    graph = vpps.Graph()
    return model, [(graph, model["W"] @ graph.zeros(4))]
def has_a_bug(batch_size): return batch_size.size
def has_a_type_error(batch_size): return len(batch_size)
def has_batches_with_a_bug(batch_size): return vpps.Model(), (1 / n for n in (1, 0))
def fails(batch_size): raise vpps.DataError("line 3: no tree")
def wants_nothing(): return vpps.Model(), []
none = lambda batch_size: (vpps.Model(), [])
wrong = lambda batch_size: "model"
wrong_batches = lambda batch_size: (vpps.Model(), [1, 2])
no_iterable = lambda batch_size: (vpps.Model(), 5)
no_expression = lambda batch_size: (vpps.Model(), [(vpps.Graph(), 3.0)])
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a module in the working directory."""
    name = f"functions_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


class TestTask:
    def test_has_the_settings_that_follow(self) -> None:
        workload = load_workload("tree-lstm", 4, ["--hidden", "8", "--limit", "20"])
        assert (workload.name, workload.settings) == ("tree-lstm", "limit=20 hidden=8")
        assert isinstance(workload.optimizer, vpps.Adam)

    def test_gives_full_batches_without_end_and_the_same_ones_again(self) -> None:
        workload = load_workload("tree-lstm", 8, ["--hidden", "8", "--limit", "20"])
        sizes = [len(graph) for graph, _ in workload.first(5)]
        assert len(sizes) == 5, "of 20 trees, two batches an epoch"
        assert sizes == [len(graph) for graph, _ in workload.first(5)]
        assert len(set(sizes)) > 1

    def test_smaller_than_a_batch_is_one_batch(self) -> None:
        workload = load_workload("tree-lstm", 64, ["--hidden", "8", "--limit", "20"])
        assert len(workload.first(2)) == 2


class TestFunction:
    def test_is_found_in_the_working_directory(self, module: str) -> None:
        workload = load_workload(f"{module}:one", 3)
        ((graph, loss),) = workload.first(5)
        assert loss.owner is graph
        assert (workload.name, workload.settings) == (f"{module}:one", "")
        assert [p.name for p in workload.model] == ["W"]

    def test_of_batches_without_end_gives_the_first(self, module: str) -> None:
        workload = load_workload(f"{module}:chain", 2)
        assert len(workload.first(1000)) == MOST_KEPT
        assert workload.first(2)[0] is workload.first(1)[0], "graphs are kept: the function was called once"

    def test_without_batches_is_refused_when_they_are_needed(self, module: str) -> None:
        with pytest.raises(vpps.WorkloadError, match=r"returned no batches; return \(model, \[\(graph, loss\), ..."):
            load_workload(f"{module}:none", 4).first(1)


@pytest.mark.parametrize(
    "name, rest, error, words",
    [
        ("tree-lstm", ["--no-such", "1"], UsageError, "--no-such"),
        ("tree-lstm", ["--hidden", "many"], UsageError, "(?i)integer"),
        ("tree-lstm", ["--data", "no/such/trees"], vpps.DataError, "no/such/trees"),
        ("tree-lsm", [], vpps.WorkloadError, "expected one of tree-lstm"),
        ("--data", [], vpps.WorkloadError, "options come after it"),
        ("M:one", ["--hidden", "8"], vpps.WorkloadError, "--hidden: .* takes no settings; give them inside the functi"),
        ("M:no_such", [], vpps.WorkloadError, "has no function 'no_such'"),
        ("M:NUMBER", [], vpps.WorkloadError, "has no function 'NUMBER'"),
        ("M:wrong", [], vpps.WorkloadError, r"returned 'model'; expected \(model, batches\)"),
        ("M:wrong_batches", [], vpps.WorkloadError, r"a batch is 1; expected \(graph, loss\)"),
        ("M:wants_nothing", [], vpps.WorkloadError, "takes 0 positional arguments but 1 was given; it is called with"),
        ("M:no_iterable", [], vpps.WorkloadError, r"batches that are 5; expected an iterable of \(graph, loss\)"),
        ("M:no_expression", [], vpps.WorkloadError, "the loss of a batch is 3.0; expected a vpps.Expression"),
        ("M:no_scalar", [], vpps.GraphError, "the loss must be a scalar"),
        ("M:fails", [], vpps.DataError, "^line 3: no tree$"),
        ("M:has_a_bug", [], vpps.WorkloadError,
         r"has_a_bug\(4\): AttributeError: .*no attribute 'size' \(FILE, line 19\)$"),
        ("M:has_a_type_error", [], vpps.WorkloadError, r"TypeError: .*has no len\(\) \(FILE, line 20\)$"),
        ("M:has_batches_with_a_bug", [], vpps.WorkloadError,
         r"batches of .*ZeroDivisionError: division by zero \(FILE, line 21\)$"),
        ("M_syntax:f", [], vpps.WorkloadError, r"import .*: SyntaxError: .*line 1\)"),
        ("M_broken:f", [], vpps.WorkloadError, r"ZeroDivisionError: .*line 2\)"),
        ("M.py:one", [], vpps.WorkloadError, "for the file M.py write M:one"),
        ("no_such_module:build", [], vpps.WorkloadError, "No module named 'no_such_module'; vpps searches this folder"),
        *((name, [], vpps.WorkloadError, "expected module:function, such as my_module:build")
          for name in (":", ":f", "module:", "../module:f", "a b:c", "a:b:c")),
    ],
)  # fmt: skip
def test_what_is_none_is_refused_in_a_sentence(
    name: str, rest: list[str], error: type[Exception], words: str, module: str, tmp_path: Path
) -> None:
    (tmp_path / f"{module}_syntax.py").write_text("def f(:")
    (tmp_path / f"{module}_broken.py").write_text("\n1 / 0")
    words = re.sub(r"\bM\b", module, words).replace("FILE", str(tmp_path / f"{module}.py"))
    with pytest.raises(error, match=words):
        load_workload(re.sub(r"^M(?=[:._])", module, name), 4, rest)
