"""Drawings: every vertex and every edge is drawn once, by every drawing tool."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest

import vpps
from tests.report.models import NETS
from vpps.graph.drawing import Drawing, draw, level_colours

pytestmark = pytest.mark.host

SVG = "{http://www.w3.org/2000/svg}"


def graph_of(net: str) -> vpps.Graph:
    _, (graph, _) = NETS[net]()
    return graph


def drawn(net: str, calls: int | None = None) -> Drawing:
    return draw(graph_of(net), calls)


@pytest.mark.parametrize("net", NETS)
class TestDrawing:
    def test_has_every_vertex_of_the_graph_with_its_level(self, net: str) -> None:
        graph = graph_of(net)
        drawing = graph.draw()
        assert [v.call for v in drawing.vertices] == list(range(len(graph)))
        assert Counter(v.cell for v in drawing.vertices) == Counter(
            {cell.name: len(block) for cell, block in graph.blocks.items()}
        )
        sources = {v.call: [e.source for e in drawing.edges if e.target == v.call] for v in drawing.vertices}
        level = {v.call: v.level for v in drawing.vertices}
        assert all(level[v] == max((level[s] + 1 for s in sources[v]), default=0) for v in level)

    def test_dot_svg_and_text_have_each_vertex_and_edge_once(self, net: str) -> None:
        drawing = drawn(net)
        vertices, text = [f"v{v.call}" for v in drawing.vertices], drawing.dot()
        assert re.findall(r"^  (v\d+) \[label=", text, re.MULTILINE) == vertices
        edges = Counter((int(a), int(b)) for a, b in re.findall(r"^  v(\d+) -> v(\d+)", text, re.MULTILINE))
        assert edges == {(e.source, e.target): 1 for e in drawing.edges}
        root = ElementTree.fromstring(drawing.svg())
        boxes = [g for g in root.iter(f"{SVG}g") if g.get("class") == "vertex"]
        assert [g.get("id") for g in boxes] == vertices
        assert sum(p.get("class") == "edge" for p in root.iter(f"{SVG}path")) == len(drawing.edges)
        shade = level_colours(drawing.levels)
        assert [rect.get("fill") for g in boxes for rect in g.iter(f"{SVG}rect")] == [
            shade[v.level] for v in drawing.vertices
        ]
        lines = [line.split() for line in str(drawing).splitlines()]
        assert Counter(line[1] for line in lines if line[0].isdigit() and "<-" in line) == Counter(
            v.cell for v in drawing.vertices if any(e.target == v.call for e in drawing.edges)
        )

    def test_boxes_of_a_level_are_beside_each_other(self, net: str) -> None:
        root = ElementTree.fromstring(drawn(net).svg())
        width, height = (float(root.get(name, "")) for name in ("width", "height"))
        spans: dict[float, list[tuple[float, float]]] = {}
        for rect in root.iter(f"{SVG}rect"):
            x, y, w, h = (float(rect.get(name, "")) for name in ("x", "y", "width", "height"))
            assert 0 <= x <= x + w <= width
            assert 0 <= y <= y + h <= height
            spans.setdefault(y, []).append((x, x + w))
        for row in spans.values():
            row.sort()
            assert all(right < left for (_, right), (left, _) in pairwise(row))


def test_values_that_are_read_more_than_once_are_one_edge() -> None:
    graph = vpps.Graph()
    x = graph.input(np.ones(3))
    vpps.sum([x * x, x])
    assert [(e.source, e.target, e.values) for e in graph.draw().edges] == [(0, 1, 2), (0, 2, 1), (1, 2, 1)]


def test_of_the_first_calls_leaves_the_others_out() -> None:
    drawing = drawn("tree", 10)
    assert [v.call for v in drawing.vertices] == list(range(10))
    assert drawing.left_out == len(graph_of("tree")) - 10
    assert f"... and {drawing.left_out} vertices more" in str(drawing)


def test_names_are_escaped() -> None:
    cell = vpps.cell(lambda x: vpps.tanh(x) * 2.0)
    cell.name = 'a<"b">\\'
    graph = vpps.Graph()
    cell(graph.input(np.ones(3)))
    drawing = graph.draw()
    assert '"a<\\"b\\">\\\\\\n#1"' in drawing.dot()
    assert 'a<"b">\\' in "".join(ElementTree.fromstring(drawing.svg()).itertext())


def test_levels_have_colours_of_their_own() -> None:
    for levels in (1, 2, 30):
        colours = level_colours(levels)
        assert len(set(colours)) == levels
        assert all(re.fullmatch("#[0-9a-f]{6}", c) for c in colours)


def test_errors_name_what_is_wrong() -> None:
    with pytest.raises(vpps.GraphError, match="the graph is empty"):
        vpps.Graph().draw()
    with pytest.raises(vpps.GraphError, match="calls=0"):
        drawn("tree", 0)
