"""Reports on cells: each pass's result, the fused ops, and the parts."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
import pytest

import vpps
from tests.report.models import NETS
from vpps.compiler.passes import Passes
from vpps.engine.configuration import Configuration
from vpps.engine.options import Example
from vpps.report import inspect
from vpps.report.cells import cells_text

pytestmark = pytest.mark.host

Paragraphs = dict[str, list[str]]
"""Lines of a cell, by the heading up to its last colon, such as "constants" or "lowered: forward"."""


def shown(
    model: vpps.Model, example: Example, name: str | None = None, train: bool = True, passes: Passes | None = None
) -> str:
    chosen = Configuration(vps=2, passes=passes or Passes())
    found = inspect(model, example, "simt", configuration=chosen, train=train)
    return cells_text(found.plan_made, found.planner, name)


@lru_cache
def of_net(net: str, name: str | None = None, train: bool = True) -> str:
    return shown(*NETS[net](), name=name, train=train)


def cells(text: str) -> list[Paragraphs]:
    """Return each cell's paragraphs, with the heading and its action first; unchanged stages repeat earlier lines."""
    found: list[Paragraphs] = []
    for paragraph in text.rstrip("\n").split("\n\n"):
        for part in re.split(r"\n(?=\S)", paragraph):
            heading, *lines = part.split("\n")
            if heading.startswith("cell "):
                found.append({})
                continue
            name = re.match(r"(lowered|fused|lazy_batching): [\w ,]+(?=:)|\w+", heading)
            assert name
            unchanged = lines == ["  unchanged"]
            found[-1][name[0]] = [heading, *(list(found[-1].values())[-1][1:] if unchanged else lines)]
    return found


def nodes(paragraph: list[str]) -> dict[str, str]:
    """Return the computation of each node in a stage, by the node's name."""
    return {made.strip(): of for made, _, of in (line.partition(" = ") for line in paragraph[1:-1])}


def operators(paragraph: list[str]) -> int:
    (count,) = re.findall(r"(\d+) operator", paragraph[0])
    return int(count)


def repetitive() -> tuple[vpps.Model, Example]:
    """Return a cell that repeats itself, multiplies by one, and has an unread result."""
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


class TestStages:
    def test_show_what_was_traced_and_what_each_pass_did(self) -> None:
        (cell,) = cells(shown(*repetitive(), name="repeats"))
        names = [name for name in cell if ":" not in name]
        assert names == ["traced", "constants", "common_subexpressions", "horizontal", "dead_outputs"]
        text = {name: "\n".join(lines) for name, lines in cell.items()}
        assert text["traced"].count("tanh(") == 2
        assert " * 1" in text["traced"]
        assert " * 1" not in text["constants"]
        assert text["common_subexpressions"].count("tanh(") == 1
        counts = [operators(cell[name]) for name in ("common_subexpressions", "constants", "traced")]
        assert counts == sorted(set(counts))
        assert text["horizontal"].count(" @ ") == text["horizontal"].count("'W+V' @ ") == 1
        assert text["dead_outputs"].startswith("dead_outputs: nothing reads output 2 of 2: no backward; ")
        (cell,) = cells(shown(*repetitive(), name="repeats", train=False))
        heading, *dead = cell["dead_outputs"]
        assert heading.startswith("dead_outputs: nothing reads output 2 of 2: not computed in inference; ")
        assert not any("sigmoid" in line for line in dead)

    @pytest.mark.parametrize("net", NETS)
    def test_have_no_node_twice_and_read_only_nodes_that_are_there(self, net: str) -> None:
        for cell in cells(of_net(net)):
            computed = list(nodes(cell["common_subexpressions"]).values())
            assert len(computed) == len(set(computed)) > 0
            for name, lines in cell.items():
                if not name.startswith(("lowered", "fused")):
                    found = nodes(lines)
                    read = re.findall(r"\bn\d+", " ".join([*found.values(), lines[-1]]))
                    assert found.keys() >= {*read}

    def test_of_the_parts_of_a_recurrence_hold_every_operator_once(self) -> None:
        split = [cell for cell in cells(of_net("chain")) if any("lazy_batching" in name for name in cell)]
        assert split
        for cell in split:
            parts = [name for name in cell if name.startswith("lazy_batching")]
            assert parts == ["lazy_batching: eager", "lazy_batching: level"]
            whole = [name for name in cell if ":" not in name][-1]
            assert sum(operators(cell[part]) for part in parts) == operators(cell[whole])
            code = {name.partition(", ")[2] for name in cell if name.startswith("lowered")}
            assert code == {"eager part", "level part"}


class TestCode:
    @pytest.mark.parametrize("net", NETS)
    def test_tails_are_made_of_the_instructions_before_fusion(self, net: str) -> None:
        def name_of(line: str) -> str:
            (name,) = re.findall(r"^  (?:\S+ = )?([a-z_0-9.]+)\(", line)
            return re.sub(r"\.(accumulate|mean)\b", "", name)

        tails = 0
        for cell in cells(of_net(net)):
            for name in [name for name in cell if name.startswith("fused")]:
                lowered = [line for line in cell[name.replace("fused", "lowered")][1:] if "barrier" not in line]
                alone = [name_of(line) for line in cell[name][1:] if re.match(r"  (?!tail|--)\S", line)]
                of = [line[7:].split(", ") for line in cell[name] if line.startswith("    of ")]
                merged = [instruction.split()[0] for instructions in of for instruction in instructions]
                assert sorted(alone + merged) == sorted(map(name_of, lowered))
                tails += len(of)
        assert tails

    def test_of_tails_is_a_program(self) -> None:
        (cell,) = cells(of_net("tree", "inner"))
        merged = next(line for line in cell["fused: forward"] if line.startswith("    of "))
        assert {m.split()[0] for m in merged[7:].split(", ")} == {"sigmoid", "tanh", "mul", "add"}
        known = set()
        for line in cell["fused: forward"]:
            if line.startswith("      "):
                made, _, of = line.strip().partition(" = ")
                assert known.issuperset(re.findall(r"\bv\d+", of))
                known.add(made)
        assert len(known) > 10

    def test_has_what_passes_and_training_make_only(self) -> None:
        plain = shown(*NETS["chain"](), passes=Passes(fusion=False, lazy_batching=False))
        assert "lowered:" in plain
        assert not re.search("fused:|lazy_batching| part:", plain)
        for train, phases in ((True, {"forward", "backward", "gradients"}), (False, {"forward"})):
            assert set(re.findall(r"(?m)^lowered: (\w+)", of_net("tree", train=train))) == phases


def test_single_operations_are_shown_if_asked_for_and_others_are_named() -> None:
    assert "cell sum of" not in of_net("tree")
    assert "cell sum of" in of_net("tree", "sum")
    with pytest.raises(vpps.GraphError, match=r"no cell 'gate' in the graph; there are .*TreeLSTMSentiment\.inner"):
        of_net("tree", "gate")
