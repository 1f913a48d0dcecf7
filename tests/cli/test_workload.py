"""What `vpps-profile` and `vpps-inspect` work on, found by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import typer

import vpps
from vpps.cli.workload import MOST_KEPT, load_workload

pytestmark = pytest.mark.host

UsageError = typer.BadParameter.__base__
"""Of Click, or of the copy of it that newer versions of Typer bring along."""

FUNCTIONS = """
import vpps

NUMBER = 3


def chain(batch_size):
    model = vpps.Model()
    W = model.parameter("W", (4, 4))

    def batches():
        k = 0
        while True:
            graph = vpps.Graph()
            k += 1
            yield graph, vpps.sum([vpps.sum(W @ graph.zeros(4)) for _ in range(batch_size)])

    return model, batches()


def one(batch_size):
    model, batches = chain(batch_size)
    return model, [next(batches)]


def none(batch_size):
    return vpps.Model(), []


def wrong(batch_size):
    return "model"


def wrong_batches(batch_size):
    return vpps.Model(), [1, 2]


def wants_nothing():
    return vpps.Model(), []


def no_iterable(batch_size):
    return vpps.Model(), 5


def no_expression(batch_size):
    return vpps.Model(), [(vpps.Graph(), 3.0)]


def no_scalar(batch_size):
    model, batches = chain(batch_size)
    graph = vpps.Graph()
    return model, [(graph, model["W"] @ graph.zeros(4))]


def has_a_bug(batch_size):
    return batch_size.size


def has_a_type_error(batch_size):
    return len(batch_size)


def has_batches_with_a_bug(batch_size):
    return vpps.Model(), (1 / n for n in (1, 0))


def fails(batch_size):
    raise vpps.DataError("line 3: no tree")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a module in the working directory."""
    name = f"functions_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


class TestTask:
    def test_has_the_settings_that_follow(self) -> None:
        workload = load_workload("tree-lstm", 4, ["--hidden", "8", "--limit", "20"])
        assert (workload.name, workload.batch_size, workload.settings) == ("tree-lstm", 4, "limit=20 hidden=8")
        assert workload.task is not None
        assert len(workload.task.train) == 20
        assert workload.model is workload.task.model
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

    def test_refuses_what_is_no_setting_of_it(self) -> None:
        with pytest.raises(UsageError, match="--no-such"):
            load_workload("tree-lstm", 4, ["--no-such", "1"])
        with pytest.raises(UsageError, match=r"(?i)integer"):
            load_workload("tree-lstm", 4, ["--hidden", "many"])

    def test_says_where_data_is_missing(self) -> None:
        with pytest.raises(vpps.DataError, match="no/such/trees"):
            load_workload("tree-lstm", 4, ["--data", "no/such/trees"])

    @pytest.mark.parametrize(
        "name, words", [("tree-lsm", "expected one of tree-lstm"), ("--data", "options come after it")]
    )
    def test_that_there_is_not_is_answered_with_those_there_are(self, name: str, words: str) -> None:
        with pytest.raises(vpps.WorkloadError, match=words):
            load_workload(name, 4)


class TestFunction:
    def test_is_found_in_the_working_directory(self, module: str) -> None:
        workload = load_workload(f"{module}:one", 3)
        ((graph, loss),) = workload.first(5)
        assert loss.owner is graph
        assert (workload.name, workload.settings, workload.task) == (f"{module}:one", "", None)
        assert [p.name for p in workload.model] == ["W"]

    def test_of_batches_without_end_gives_the_first(self, module: str) -> None:
        workload = load_workload(f"{module}:chain", 2)
        assert len(workload.first(1000)) == MOST_KEPT
        assert workload.first(2)[0] is workload.first(1)[0], "graphs are kept: the function was called once"

    @pytest.mark.parametrize(
        "function, words",
        [
            ("no_such", "has no function 'no_such'"),
            ("NUMBER", "has no function 'NUMBER'"),
            ("wrong", r"returned 'model'; expected \(model, batches\)"),
            ("wrong_batches", r"a batch is 1; expected \(graph, loss\)"),
            ("wants_nothing", "takes 0 positional arguments but 1 was given; it is called with the batch size"),
            ("no_iterable", r"batches that are 5; expected an iterable of \(graph, loss\)"),
            ("no_expression", "the loss of a batch is 3.0; expected a vpps.Expression"),
        ],
    )
    def test_that_is_none_is_refused(self, module: str, function: str, words: str) -> None:
        with pytest.raises(vpps.WorkloadError, match=words):
            load_workload(f"{module}:{function}", 4)

    @pytest.mark.parametrize(
        "function, words",
        [
            ("has_a_bug", r"has_a_bug\(4\): AttributeError: .*no attribute 'size' \({file}, line 57\)$"),
            ("has_a_type_error", r"TypeError: .*has no len\(\) \({file}, line 61\)$"),
            ("has_batches_with_a_bug", r"batches of .*ZeroDivisionError: division by zero \({file}, line 65\)$"),
        ],
    )
    def test_an_error_inside_it_is_one_sentence_that_says_where(
        self, module: str, tmp_path: Path, function: str, words: str
    ) -> None:
        with pytest.raises(vpps.WorkloadError, match=words.format(file=tmp_path / f"{module}.py")):
            load_workload(f"{module}:{function}", 4)

    @pytest.mark.parametrize(
        "text, words",
        [("def f(:", r"import .*: SyntaxError: .*line 1\)"), ("\n1 / 0", "ZeroDivisionError: .*line 2\\)")],
    )
    def test_in_a_module_that_cannot_be_imported(self, module: str, tmp_path: Path, text: str, words: str) -> None:
        (tmp_path / f"{module}_broken.py").write_text(text)
        with pytest.raises(vpps.WorkloadError, match=words):
            load_workload(f"{module}_broken:f", 4)

    @pytest.mark.parametrize("name", [":", ":f", "module:", "../module:f", "a b:c", "a:b:c"])
    def test_that_is_no_name_of_one_is_refused(self, name: str) -> None:
        with pytest.raises(vpps.WorkloadError, match="expected module:function, such as my_module:build"):
            load_workload(name, 4)

    def test_of_a_file_is_answered_with_its_module(self, module: str) -> None:
        with pytest.raises(vpps.WorkloadError, match=f"of a file {module}.py write {module}:one"):
            load_workload(f"{module}.py:one", 4)

    def test_whose_loss_is_no_scalar_is_refused_before_anything_is_compiled(self, module: str) -> None:
        with pytest.raises(vpps.GraphError, match="the loss must be a scalar"):
            load_workload(f"{module}:no_scalar", 4)

    def test_errors_of_vpps_inside_it_stay_what_they_are(self, module: str) -> None:
        with pytest.raises(vpps.DataError, match="line 3: no tree"):
            load_workload(f"{module}:fails", 4)

    def test_without_batches_is_refused_when_they_are_needed(self, module: str) -> None:
        with pytest.raises(vpps.WorkloadError, match=r"gave no batches; return \(model, \[\(graph, loss\), ...\]\)"):
            load_workload(f"{module}:none", 4).first(1)

    def test_takes_no_settings(self, module: str) -> None:
        with pytest.raises(vpps.WorkloadError, match=r"--hidden: .* takes no settings; give them inside the function"):
            load_workload(f"{module}:one", 4, ["--hidden", "8"])

    def test_in_a_module_that_is_not_there(self) -> None:
        with pytest.raises(vpps.WorkloadError, match="No module named 'no_such_module'; it is looked for here"):
            load_workload("no_such_module:build", 4)
