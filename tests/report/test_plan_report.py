"""Reports of plans and scripts list everything in a launch once, with correct sums."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import lru_cache

import pytest

import vpps
from tests.report.models import NETS, chain, lists, tree
from vpps.compiler.passes import Passes
from vpps.engine.configuration import Configuration
from vpps.placement.onchip import DEVICES
from vpps.planner.native.interface import PHASES
from vpps.report import Inspection, inspect
from vpps.report.plan_report import MOST_ROWS
from vpps.report.script_report import script_text
from vpps.runtime import driver
from vpps.runtime.driver import Properties
from vpps.script.instructions import HEADER_WORDS

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
        assert HEADER_WORDS + report.vps + report.list_words + report.instruction_words == len(found.plan_made.script)
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
        for cells in found.plan.levels.values():
            levels.update(cells)
        assert levels == whole

    def test_barriers_are_what_is_waited_for(self, net: str, train: bool, policy: str) -> None:
        found = inspection(net, train=train, policy=policy)
        assert found.plan.barriers == len(re.findall(r"(?m)^ +\d+  (?:wait|barrier) ", found.script))
        assert found.plan.barriers == sum(found.plan.barriers_of.values())
        # Parameter gradients may begin without a barrier after backward.
        phases = set(PHASES) if train else {"forward"}
        assert phases - {"gradients"} <= found.plan.barriers_of.keys() <= phases


def test_one_virtual_processor_needs_no_barriers() -> None:
    assert inspection("tree", target="cpu", vps=1).plan.barriers == 0


def test_parts_of_cells_and_slabs_of_elements_are_told_apart() -> None:
    report = inspection("chain").plan
    assert {s.part for s in report.steps} == {s.part for s in report.slabs} == {"", "eager", "level"}
    assert {s.per for s in inspection("lists").plan.slabs} == {"vertex", "element"}


def test_text_has_every_cell_and_list_and_the_first_of_many_levels() -> None:
    report = copy(inspection("tree").plan)
    text = str(report)
    assert all(slab.symbol in text for slab in report.slabs)
    assert all(x.what in text for x in report.lists)
    assert "training, policy sinks-last, schedule vector, 3 virtual processors" in text
    slab = next(s for s in report.slabs if s.life == "kept to the end")
    assert slab.size == f"{slab.rows:,} x {slab.width:,}"
    assert slab._replace(rows=238, width=320, bytes=80_640).size == "63 x 320 (of 238)"
    report.levels = {k: Counter(step=1) for k in range(1000)}
    assert f"... and {1000 - MOST_ROWS + 1} more" in str(report)
    groups = Configuration(vps=4, onchip=vpps.ChipOptions(groups=2), passes=FUSED)
    assert "4 virtual processors in 2 groups" in str(inspect(*tree(), "simt", configuration=groups).plan)


@pytest.mark.parametrize("schedule", ["vector", "paper"])
class TestScript:
    def test_has_every_instruction_once_and_says_where_it_comes_from(self, schedule: str) -> None:
        found = inspection("tree", schedule=schedule)
        lines = re.findall(r"(?m)^ *(\d+)  ([a-z]\S*).*?(; .*)?$", found.script)
        assert len({position for position, *_ in lines}) == len(lines) == found.plan.instructions
        assert all(where or name == "end" for _, name, where in lines)
        vps = re.findall(r"; virtual processors (.*), from word", found.script)
        assert vps == (["0 to 2"] if schedule == "vector" else ["0", "1", "2"])

    def test_of_one_virtual_processor_may_be_cut(self, schedule: str) -> None:
        plan = inspection("lists", schedule=schedule).plan_made
        assert re.findall(r"; virtual processors (.*), from word", script_text(plan, 2)) == ["2"]
        whole, part = (script_text(plan, 2, most).splitlines() for most in (None, 2))
        assert part == [*whole[:4], f"; ... and {len(whole) - 4} instructions more"]
        with pytest.raises(vpps.ScriptError, match="no virtual processor 3: expected 0 to 2"):
            script_text(plan, 3)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: inspection("tree", target="gpu"), "target='gpu': expected 'cpu', 'cuda' or 'simt'"),
        (lambda: inspection("tree", policy="widest"), "policy='widest': expected one of sinks-last, depth, agenda"),
        (lambda: inspection("tree", schedule="random"), "schedule='random': expected one of vector, paper"),
        (lambda: inspect("tree", lists()[1]), r"expected a vpps\.Model"),  # type: ignore[arg-type]
        (lambda: inspect(chain()[0], "graph"), r"expected \(graph, loss\)"),  # type: ignore[arg-type]
    ],
)
def test_errors_name_what_is_wrong(call: Callable[[], object], words: str) -> None:
    with pytest.raises(vpps.VppsError, match=words):
        call()


def test_the_gpu_that_is_there_is_planned_for_unless_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    known = DEVICES["T4"]
    gpu = Properties("T4", "sm_75", 13, known.shared_per_block, 13000, known.l2_bytes)
    monkeypatch.setattr(driver, "usable_gpu", lambda: gpu)
    for named, planned in ((None, ("sm_75", 13)), ("sm_90", ("sm_90", 132))):
        found = inspect(*tree(), "cuda", named)
        assert (found.arch, found.plan.vps) == planned
