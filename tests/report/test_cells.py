"""Reports of cells: what each pass left, what was fused, which parts there are."""

from __future__ import annotations

import json
from functools import lru_cache

import numpy as np
import pytest

import vpps
from tests.report.models import NETS
from vpps.compiler.passes import Passes
from vpps.engine.configuration import Configuration
from vpps.engine.options import Example
from vpps.report import inspect
from vpps.report.cells import TRACED, CellReport, CellsReport, CellStage

pytestmark = pytest.mark.host


def cells(model: vpps.Model, example: Example, train: bool = True, passes: Passes = Passes()) -> CellsReport:  # noqa: B008
    return inspect(model, example, "simt", configuration=Configuration(vps=2, passes=passes), train=train).cell


@lru_cache
def of_net(net: str, train: bool = True) -> CellsReport:
    return cells(*NETS[net](), train=train)


def repetitive() -> tuple[vpps.Model, Example]:
    """A cell that says things twice, multiplies by one, and has a result that nothing reads."""
    model = vpps.Model(seed=1)
    W, V = (model.parameter(name, (8, 8)) for name in "WV")

    @vpps.cell
    def repeats(x: vpps.Expression) -> tuple[vpps.Expression, vpps.Expression]:
        once = vpps.tanh(W @ x) * 1.0
        again = vpps.tanh(W @ x)
        return once + again, vpps.sigmoid(V @ x)

    graph = vpps.Graph()
    value, _ = repeats(graph.input(np.ones(8)))
    return model, (graph, vpps.sum(value))


def stage(cell: CellReport, name: str) -> CellStage:
    (found,) = (s for s in cell.stages if s.name == name)
    return found


class TestStages:
    def test_begin_with_what_was_traced_and_follow_the_passes(self) -> None:
        (cell,) = cells(*repetitive()).named("repeats").cells
        names = [s.name for s in cell.stages]
        assert names == [TRACED, "constants", "common_subexpressions", "horizontal", "dead_outputs"]
        assert [
            s.name for s in cells(*repetitive(), passes=Passes(constants=False)).named("repeats").cells[0].stages
        ] == [name for name in names if name != "constants"]

    def test_show_what_each_pass_did(self) -> None:
        (cell,) = cells(*repetitive()).named("repeats").cells
        assert sum(n.op == "tanh" for n in stage(cell, TRACED).nodes) == 2
        assert "scale" in {n.op for n in stage(cell, TRACED).nodes}
        assert "scale" not in {n.op for n in stage(cell, "constants").nodes}
        shared = stage(cell, "common_subexpressions")
        assert sum(n.op == "tanh" for n in shared.nodes) == 1
        assert shared.operators < stage(cell, "constants").operators < stage(cell, TRACED).operators
        stacked = stage(cell, "horizontal")
        assert [n.parameter for n in stacked.nodes if n.op == "affine"] == ["W+V"]
        assert stage(cell, "dead_outputs").said == "nothing reads output 2 of 2: no backward"

    def test_without_results_that_nothing_reads_in_inference(self) -> None:
        (cell,) = cells(*repetitive(), train=False).named("repeats").cells
        dead = stage(cell, "dead_outputs")
        assert dead.said == "nothing reads output 2 of 2: not computed in inference"
        assert "sigmoid" not in {n.op for n in dead.nodes}
        assert len(dead.results) == 1

    @pytest.mark.parametrize("net", NETS)
    def test_have_no_node_twice_once_subexpressions_are_shared(self, net: str) -> None:
        for cell in of_net(net).cells:
            found = stage(cell, "common_subexpressions")
            computed = [n.line.partition(" = ")[2] for n in found.nodes if n.op not in ("argument", "input")]
            assert len(computed) == len(set(computed))

    @pytest.mark.parametrize("net", NETS)
    def test_read_only_nodes_that_are_there(self, net: str) -> None:
        for cell in of_net(net).cells:
            for s in (*cell.stages, *cell.parts):
                numbers = {n.number for n in s.nodes}
                assert numbers >= {*s.results, *(j for n in s.nodes for j in n.inputs)}


class TestParts:
    def test_of_a_recurrence_hold_every_operator_once(self) -> None:
        split = [cell for cell in of_net("chain").cells if cell.parts]
        assert split
        for cell in split:
            assert [p.name for p in cell.parts] == ["lazy_batching: eager", "lazy_batching: level"]
            assert sum(p.operators for p in cell.parts) == cell.stages[-1].operators
            assert {code.part for code in cell.code} == {"eager", "level"}

    def test_are_none_without_lazy_batching(self) -> None:
        whole = cells(*NETS["chain"](), passes=Passes(lazy_batching=False))
        assert not any(cell.parts for cell in whole.cells)


class TestCode:
    @pytest.mark.parametrize("net", NETS)
    def test_tails_are_made_of_the_instructions_before_fusion(self, net: str) -> None:
        merged = 0
        for cell in of_net(net).cells:
            for code in cell.code:
                alone = [(i.name, i.node) for i in code.fused if not i.merged]
                together = [m for i in code.fused for m in i.merged]
                merged += len(together)
                assert set(alone) | set(together) == {(i.name, i.node) for i in code.lowered}
        assert merged

    def test_of_tails_is_a_program(self) -> None:
        (cell,) = of_net("tree").named("inner").cells
        (tail,) = (i for code in cell.code if code.phase == "forward" for i in code.fused if i.program)
        assert "tanh" in str(cell)
        assert {"sigmoid", "tanh", "mul", "add"} == {name for name, _ in tail.merged}
        known = set()
        for line in tail.program:
            made, _, of = line.partition(" = ")
            assert all(
                v in known for v in of.replace("(", " ").replace(")", " ").replace(",", " ").split() if v[0] == "v"
            )
            known.add(made)

    def test_without_fusion_has_no_tails(self) -> None:
        plain = cells(*NETS["tree"](), passes=Passes(fusion=False))
        assert all(code.fused == code.lowered for cell in plain.cells for code in cell.code)
        assert "fused:" not in str(plain)

    def test_has_gradients_of_parameters_in_training_only(self) -> None:
        phases = {code.phase for cell in of_net("tree").cells for code in cell.code}
        assert phases == {"forward", "backward", "gradients"}
        assert {code.phase for cell in of_net("tree", train=False).cells for code in cell.code} == {"forward"}


class TestText:
    def test_leaves_single_operations_out(self) -> None:
        report = of_net("tree")
        assert any(cell.bare for cell in report.cells)
        assert all((f"cell {cell.name} of" in str(report)) != cell.bare for cell in report.cells)
        assert "cell sum of" in str(report.named("sum"))

    def test_has_lines_of_nodes(self) -> None:
        text = str(of_net("tree").named("inner"))
        assert "  n13 = sigmoid(n8)  (8)\n" in text
        assert "  n5 = 'tree_lstm/U' @ n4  (40)\n" in text
        assert "  n9 = n7[8:16]  (8)\n" in text
        assert "  unchanged\n" in text
        assert not any(line != line.rstrip() for line in text.splitlines())

    def test_json_is_json(self) -> None:
        for net in NETS:
            found = of_net(net).as_json()
            assert json.loads(json.dumps(found)) == found


def test_error_names_the_cells_that_there_are() -> None:
    with pytest.raises(vpps.GraphError, match=r"no cell 'gate' in the graph; there are .*TreeLSTMSentiment\.inner"):
        of_net("tree").named("gate")
