"""Reports of plans and scripts: everything that a launch has is in them once, and the sums are right."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import lru_cache

import pytest

import vpps
from tests.report.models import NETS, chain, lists, tree
from vpps.compiler.passes import Passes
from vpps.engine.configuration import Configuration
from vpps.placement.onchip import DEVICES
from vpps.planner.sections import Phase
from vpps.report import Inspection, inspect
from vpps.report.plan_report import MOST_ROWS, LevelUse
from vpps.runtime import driver
from vpps.runtime.driver import Properties

pytestmark = pytest.mark.host

FUSED = Passes()


@lru_cache
def inspection(net: str, target: str = "simt", vps: int = 3, train: bool = True, **options: object) -> Inspection:
    model, example = NETS[net]()
    chosen = replace(Configuration(vps=vps, passes=FUSED), **options)  # type: ignore[arg-type]
    return inspect(model, example, target, configuration=chosen, train=train)


CASES = [(net, train, policy) for net in NETS for train in (True, False) for policy in ("sinks-last", "depth")]


@pytest.mark.parametrize("net, train, policy", CASES)
class TestPlan:
    def test_slabs_are_the_arrays_that_the_verifier_knows(self, net: str, train: bool, policy: str) -> None:
        found = inspection(net, train=train, policy=policy)
        begin = found.planner.distribution.end
        end = begin + found.plan.slab_bytes // 4
        known = {(a, b) for a, b, *_ in found.plan_made.layout.memory.tolist() if begin <= a and b <= end and a < b}
        assert {span for slab in found.plan.slabs for span in slab.spans} == known
        assert max(stop for slab in found.plan.slabs for _, stop in slab.spans) == end

    def test_bytes_and_words_add_up(self, net: str, train: bool, policy: str) -> None:
        found = inspection(net, train=train, policy=policy)
        report = found.plan
        assert report.weight_bytes + report.slab_bytes + report.other_bytes == 4 * found.plan_made.pool_floats
        assert report.header_words + report.list_words + report.instruction_words == len(found.plan_made.script)
        assert report.script_words == len(found.plan_made.script)
        assert all(s.bytes <= 4 * s.rows * s.width for s in report.slabs)
        assert all(s.bytes == 4 * s.rows * s.width for s in report.slabs if s.life == "kept to the end")

    def test_steps_cover_every_vertex(self, net: str, train: bool, policy: str) -> None:
        found = inspection(net, train=train, policy=policy)
        graph = found.graph_made
        whole = Counter[str]()
        for block in graph.blocks.values():
            whole[block.cell.name] += len(block)
        rows = Counter[tuple[str, str, str]]()
        for s in found.plan.steps:
            rows[s.cell, s.part, s.phase] += s.rows
        forward = {(cell, part): n for (cell, part, phase), n in rows.items() if phase == "forward"}
        assert {cell for cell, _ in forward} == set(whole)
        assert all(n == whole[cell] for (cell, _), n in forward.items())
        assert any(phase == "backward" for *_, phase in rows) == train
        levels = Counter[str]()
        for level in found.plan.levels:
            levels.update(level.cells)
        assert levels == whole

    def test_barriers_are_what_is_waited_for(self, net: str, train: bool, policy: str) -> None:
        found = inspection(net, train=train, policy=policy)
        (stream,) = found.script.streams
        assert found.plan.barriers == sum(i.name in ("wait", "barrier") for i in stream.instructions)
        assert found.plan.barriers == sum(found.plan.barriers_of.values())
        # Gradients of parameters may begin with no barrier behind backward.
        phases = {p.value for p in Phase} if train else {"forward"}
        assert phases - {Phase.GRADIENTS.value} <= found.plan.barriers_of.keys() <= phases


def test_one_virtual_processor_needs_no_barriers() -> None:
    assert inspection("tree", target="cpu", vps=1).plan.barriers == 0


class TestParts:
    def test_of_a_recurrent_cell_are_told_apart(self) -> None:
        report = inspection("chain").plan
        assert {s.part for s in report.steps} == {"", "eager", "level"}
        assert {s.part for s in report.slabs} == {"", "eager", "level"}

    def test_slabs_of_list_elements_say_so(self) -> None:
        assert {s.per for s in inspection("lists").plan.slabs} == {"vertex", "element"}


class TestText:
    def test_rows_and_width_are_those_of_the_memory(self) -> None:
        slab = next(s for s in inspection("tree").plan.slabs if s.life == "kept to the end")
        assert slab.size == f"{slab.rows:,} x {slab.width:,}"
        reused = replace(slab, rows=238, width=320, bytes=80_640)
        assert reused.size == "63 x 320 (of 238)"

    def test_has_every_cell_and_list(self) -> None:
        report = inspection("tree").plan
        text = str(report)
        assert all(slab.symbol in text for slab in report.slabs)
        assert all(x.what in text for x in report.lists)
        assert "training, policy sinks-last, schedule vector, 3 virtual processors" in text
        assert not any(line != line.rstrip() for line in text.splitlines())

    def test_of_many_levels_has_the_first_and_how_many_more(self) -> None:
        report = inspection("tree").plan
        many = replace(report, levels=tuple(LevelUse(k, {"step": 1}) for k in range(1000)))
        assert f"... and {1000 - MOST_ROWS + 1} more" in many.text()
        assert len(many.as_json()["levels"]) == 1000

    def test_names_the_groups(self) -> None:
        model, example = tree()
        groups = Configuration(vps=4, onchip=vpps.ChipOptions(groups=2), passes=FUSED)
        assert "4 virtual processors in 2 groups" in str(inspect(model, example, "simt", configuration=groups).plan)


@pytest.mark.parametrize("schedule", ["vector", "paper"])
class TestScript:
    def test_has_every_instruction_once(self, schedule: str) -> None:
        found = inspection("tree", schedule=schedule)
        words = [
            w for s in found.script.streams for i in s.instructions for w in range(i.position, i.position + i.words)
        ]
        assert len(words) == len(set(words)) == found.plan.instruction_words
        assert sum(len(s.instructions) for s in found.script.streams) == found.plan.instructions
        assert sorted(vp for s in found.script.streams for vp in s.vps) == [0, 1, 2]

    def test_says_where_each_one_comes_from(self, schedule: str) -> None:
        found = inspection("tree", schedule=schedule)
        for stream in found.script.streams:
            assert all(i.where or i.name == "end" for i in stream.instructions)

    def test_of_one_virtual_processor(self, schedule: str) -> None:
        script = inspection("lists", schedule=schedule).script
        (stream,) = script.of(2).streams
        assert stream.vps == (2,)
        with pytest.raises(vpps.ScriptError, match="no virtual processor 3: expected 0 to 2"):
            script.of(3)

    def test_says_how_much_it_leaves_out(self, schedule: str) -> None:
        script = inspection("lists", schedule=schedule).script
        for whole, part in zip(script.streams, script.first(2).streams, strict=True):
            assert part.instructions == whole.instructions[:2]
            assert part.left_out == len(whole.instructions) - 2
            assert f"; ... and {part.left_out} instructions more" in part.text()


def test_json_is_json() -> None:
    for net in NETS:
        found = inspection(net)
        for report in (found.plan, found.script):
            text = json.dumps(report.as_json())
            assert json.loads(text) == report.as_json()


class TestErrors:
    @pytest.mark.parametrize(
        "options, words",
        [
            ({"target": "gpu"}, "target='gpu': expected 'cpu', 'cuda' or 'simt'"),
            ({"policy": "widest"}, "policy='widest': expected one of sinks-last, depth, agenda"),
            ({"schedule": "random"}, "schedule='random': expected one of vector, paper"),
            ({"target": "cpu", "tile": "mmx-4x4"}, "tile='mmx-4x4': for .* there are"),
        ],
    )
    def test_name_what_is_wrong(self, options: dict[str, str], words: str) -> None:
        with pytest.raises(vpps.VppsError, match=words):
            inspection("tree", **options)  # type: ignore[arg-type]

    def test_of_what_is_no_model(self) -> None:
        with pytest.raises(vpps.HandleError, match=r"expected a vpps\.Model"):
            inspect("tree", lists()[1])  # type: ignore[arg-type]
        with pytest.raises(vpps.HandleError, match=r"expected \(graph, loss\)"):
            inspect(chain()[0], "graph")  # type: ignore[arg-type]


class TestGpu:
    @pytest.fixture
    def present(self, monkeypatch: pytest.MonkeyPatch) -> None:
        known = DEVICES["T4"]
        gpu = Properties("T4", "sm_75", 13, known.shared_per_block, 13000, known.shared_per_sm, known.l2_bytes)
        monkeypatch.setattr(driver, "usable_gpu", lambda: gpu)

    def test_that_is_there_is_planned_for(self, present: None) -> None:
        found = inspect(*tree(), "cuda")
        assert (found.arch, found.plan.vps) == ("sm_75", 13)

    def test_that_is_named_comes_first(self, present: None) -> None:
        found = inspect(*tree(), "cuda", "sm_90")
        assert (found.arch, found.plan.vps) == ("sm_90", 132)
