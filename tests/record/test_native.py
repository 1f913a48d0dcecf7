"""Graphs of the compiled recorder equal those of the Python one. Also tests its memory, methods and absence."""

from __future__ import annotations

import gc
import inspect
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vpps
from tests.record.test_call_cache import everything_recorded, node, record_tree
from vpps.config import notice
from vpps.graph import recorder as library
from vpps.kernel import prebuilt
from vpps.record import vertices
from vpps.record.arrays import BlockArrays
from vpps.record.cell import Cell

pytestmark = pytest.mark.host

E = vpps.Expression


@vpps.cell
def double(x: E) -> E:
    return x * 2.0


@pytest.fixture
def compiled(use_recorder: Callable[[str], None]) -> None:
    use_recorder("compiled")


def test_graphs_go_on_as_they_began(use_recorder: Callable[[str], None]) -> None:
    """It does not matter if a recorder is chosen in between, as by a process's first handle."""
    use_recorder("python")
    begun = vpps.Graph()
    record_tree(begun)
    use_recorder("compiled")
    record_tree(begun)
    whole = vpps.Graph()
    record_tree(whole)
    use_recorder("python")
    record_tree(whole)
    assert everything_recorded(begun) == everything_recorded(whole)


@pytest.mark.usefixtures("compiled")
def test_no_reference_is_lost_or_kept() -> None:
    graph = vpps.Graph()
    x, y = graph.zeros(3), graph.zeros(2)
    node(x, [x], [x], 1)
    node(x, [], [], 1)
    watched: list[Any] = [graph, x, y, x.shape, y.shape, node, None, graph.recorders]

    def counts() -> list[int]:
        gc.collect()
        return [sys.getrefcount(w) for w in watched]

    def calls(args: tuple[Any, ...], error: type[Exception] | None) -> None:
        for _ in range(500):
            if error is None:
                node(*args)
            else:
                with pytest.raises(error):
                    node(*args)

    several: list[tuple[tuple[Any, ...], type[Exception] | None]] = [
        ((x, [x, x], [x, x], 2), None),
        ((x, [], (), 2), None),
        ((x, [x, x], [x], 1), vpps.ShapeError),
        ((x, [x, y], [x, x], 1), vpps.ShapeError),
        ((x, [x], [x], 7), vpps.IndexRangeError),
    ]
    for args, error in several:
        calls(args, error)
    before = counts()
    for args, error in several:
        calls(args, error)
    assert np.abs(np.subtract(counts(), before)).max() < 100


@pytest.mark.usefixtures("compiled")
def test_arrays_are_copies_and_a_graph_may_grow_under_them() -> None:
    graph = vpps.Graph()
    x = graph.zeros(3)
    double(x)
    (block,) = (b for b in graph.blocks.values() if b.cell.name == "double")
    before = BlockArrays(block)
    for _ in range(1000):
        double(x)
    assert len(before.calls) == 1
    assert len(BlockArrays(block).calls) == 1001
    view = memoryview(block.rows)  # type: ignore[arg-type]
    assert not view.readonly  # so that ctypes can read its address
    with pytest.raises(vpps.GraphError, match="cannot grow while"):
        block.rows.extend(range(10**5))
    view.release()
    for wrong in ([1, "2"], [2**70], 3):
        n = len(block.rows)
        with pytest.raises((TypeError, OverflowError)):
            block.rows.extend(wrong)  # type: ignore[arg-type]
        assert len(block.rows) == n


@pytest.mark.usefixtures("compiled")
def test_an_expression_made_by_hand_cannot_point_outside() -> None:
    graph = vpps.Graph()
    x = graph.zeros(3)
    double(x)
    for ref in (2**40, -(2**40), 2**70):
        n = len(graph)
        with pytest.raises((IndexError, OverflowError)):
            double(E(graph, ref, (3,)))
        assert len(graph) == n


@pytest.mark.usefixtures("compiled")
def test_methods_are_what_they_were_to_whoever_looks() -> None:
    assert list(inspect.signature(vpps.Graph.lookup).parameters) == ["self", "table", "row"]
    assert "Return a row of an embedding table" in (inspect.getdoc(vpps.Graph.lookup) or "")
    assert (vpps.Graph.call.__name__, Cell.__call__.__qualname__) == ("call", "Cell.__call__")
    graph = vpps.Graph()
    x = graph.zeros(3)
    call = graph.call
    assert call(double, x).shape == call(double, x).shape == (3,)


def test_graphs_are_built_on_several_threads_at_once() -> None:
    """Each thread also traces new cells."""
    expected = vpps.Graph()
    record_tree(expected)
    found: list[vpps.Graph] = []

    def build() -> None:
        for _ in range(20):
            graph = vpps.Graph()
            record_tree(graph)
            fresh = vpps.cell(lambda x: vpps.tanh(x) + x)
            fresh(graph.zeros(2))
            found.append(graph)

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    n_blocks = len(expected.blocks)
    assert all(everything_recorded(g)[:n_blocks] == everything_recorded(expected) for g in found)


class TestBeingOptional:
    """Tests the effect of VPPS_RECORDER, and the fallback if no recorder was compiled."""

    @pytest.fixture(autouse=True)
    def nothing_tried(self, use_recorder: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
        use_recorder("python")
        monkeypatch.setattr(library, "_tried", False)

    def in_use(self) -> bool:
        return vertices.new_tape is not vertices.Tape

    def test_python_is_python(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VPPS_RECORDER", "python")
        library.prepare()
        assert not self.in_use()

    def test_where_none_was_compiled_python_records_and_says_so(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        monkeypatch.setattr(prebuilt, "FOLDER", tmp_path)
        monkeypatch.delenv("VPPS_LOG", raising=False)
        notice.cache_clear()
        library.prepare()
        library.prepare()
        assert not self.in_use()
        assert capsys.readouterr().err.count("vpps: graphs are recorded in Python") == 1
        monkeypatch.setenv("VPPS_RECORDER", "compiled")
        with pytest.raises(vpps.CompileError, match="the recorder was not compiled when vpps was installed"):
            library.prepare()

    def test_other_values_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VPPS_RECORDER", "quick")
        with pytest.raises(vpps.HandleError, match="VPPS_RECORDER=quick: expected auto, python or compiled"):
            library.prepare()

    def test_a_handle_puts_it_in_use_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made = []
        monkeypatch.setattr(library, "load", lambda: made.append(1) or object())
        monkeypatch.setattr(library, "use", lambda module: monkeypatch.setattr(vertices, "new_tape", object))
        for _ in range(3):
            library.prepare()
        assert made == [1]
