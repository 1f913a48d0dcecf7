"""Draws a graph: a box for each vertex, coloured by level, and an arrow from each value to its readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from colorsys import hls_to_rgb
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vpps.errors import GraphError
from vpps.record.topology import Topology
from vpps.text import Readable, counted
from vpps.values import as_count

if TYPE_CHECKING:
    from vpps.graph.graph import Graph

# In pixels.
_LINE, _CHARACTER, _PADDING = 14, 7, 10
_GAP, _BETWEEN_LEVELS, _MARGIN = 14, 46, 20


class DrawnVertex(NamedTuple):
    """A vertex.

    Attributes:
        call: recording index, which error messages use.
        cell: name of the vertex's cell; for a bare operation, the operation's name.
        level: longest distance from a leaf.
        ints: the vertex's int arguments, such as words or labels.
    """

    call: int
    cell: str
    level: int
    ints: tuple[int, ...]


class DrawnEdge(NamedTuple):
    """Number of values that the call `target` reads from the call `source`."""

    source: int
    target: int
    values: int


@dataclass(frozen=True, slots=True)
class Drawing(Readable):
    """A graph, or its first vertices; `str` gives one line for each vertex, by level.

    Attributes:
        vertices: in call order.
        edges: in the order of the calls that read.
        left_out: number of later vertices that are not drawn.
    """

    vertices: tuple[DrawnVertex, ...]
    edges: tuple[DrawnEdge, ...]
    left_out: int = 0

    @property
    def levels(self) -> int:
        """Number of levels drawn."""
        return 1 + max((v.level for v in self.vertices), default=-1)

    def _reads(self) -> dict[int, list[int]]:
        """Return the calls that each call reads, if there are any."""
        found: dict[int, list[int]] = {}
        for edge in self.edges:
            found.setdefault(edge.target, []).append(edge.source)
        return found

    def __str__(self) -> str:
        reads = self._reads()
        lines = [f"{counted(len(self.vertices), 'vertex', 'vertices')} in {counted(self.levels, 'level')}"]
        level = -1
        for v in sorted(self.vertices, key=lambda v: (v.level, v.call)):
            if v.level != level:
                level = v.level
                lines.append(f"level {level}")
            ints = f" ({', '.join(map(str, v.ints))})" if v.ints else ""
            of = f"  <- {', '.join(map(str, reads[v.call]))}" if v.call in reads else ""
            lines.append(f"{v.call:>7} {v.cell}{ints}{of}")
        if self.left_out:
            lines.append(f"... and {counted(self.left_out, 'vertex', 'vertices')} more")
        return "\n".join([*lines, ""])

    def dot(self) -> str:
        """Return Graphviz source, with leaves at the bottom."""
        colours = level_colours(self.levels)
        labels = self._labels()
        lines = [
            "digraph vpps {",
            "  rankdir=BT;",
            '  node [shape=box, style="filled,rounded", fontname="Helvetica", fontsize=11];',
            '  edge [color="#555555", arrowsize=0.6];',
        ]
        for v in self.vertices:
            label, tooltip = "\\n".join(map(_quoted, labels[v.call])), _quoted(f"{v.cell}, level {v.level}")
            lines.append(f'  v{v.call} [label="{label}", tooltip="{tooltip}", fillcolor="{colours[v.level]}"];')
        for level in range(self.levels):
            alike = " ".join(f"v{v.call};" for v in self.vertices if v.level == level)
            lines.append(f"  {{ rank=same; {alike} }}")
        for e in self.edges:
            width = f" [penwidth={min(e.values, 4)}]" if e.values > 1 else ""
            lines.append(f"  v{e.source} -> v{e.target}{width};")
        return "\n".join([*lines, "}", ""])

    def svg(self) -> str:
        """Return a picture with every vertex above the mean of its operands; `dot -Tsvg` draws `dot()` differently."""
        return "\n".join([*self._svg(), ""])

    def _labels(self) -> dict[int, list[str]]:
        """Return each vertex's lines: its cell, without the class if that is clear; its call and its ints."""
        names = {v.cell for v in self.vertices}
        last = Counter(name.rpartition(".")[2] for name in names)
        shown = {name: name.rpartition(".")[2] if last[name.rpartition(".")[2]] == 1 else name for name in names}
        return {
            v.call: [shown[v.cell], f"#{v.call}" + (f" ({', '.join(map(str, v.ints))})" if v.ints else "")]
            for v in self.vertices
        }

    def _repr_html_(self) -> str:
        rest = f"<p>and {counted(self.left_out, 'later vertex', 'later vertices')}</p>" if self.left_out else ""
        return f'<div style="overflow-x: auto">{self.svg()}</div>{rest}'

    # ---- as a picture

    def _svg(self) -> Iterator[str]:
        labels = self._labels()
        colours = level_colours(self.levels)
        boxes = self._boxes(labels)
        width = max((b.right for b in boxes.values()), default=0) + _MARGIN
        height = max((b.top + b.height for b in boxes.values()), default=0) + _MARGIN
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="Helvetica, Arial, sans-serif" font-size="11">'
        )
        yield (
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="6" markerHeight="6" '
            'orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#555"/></marker></defs>'
        )
        yield '<g fill="none" stroke="#555" marker-end="url(#arrow)">'
        for e in self.edges:
            a, b = boxes[e.source], boxes[e.target]
            x0, y0, x1, y1 = a.centre, a.top, b.centre, b.top + b.height
            half = (y0 - y1) / 2
            yield (
                f'<path class="edge" d="M{x0:.1f} {y0:.1f} C{x0:.1f} {y0 - half:.1f} {x1:.1f} {y1 + half:.1f} '
                f'{x1:.1f} {y1:.1f}" stroke-width="{min(e.values, 4)}"/>'
            )
        yield "</g>"
        for v in self.vertices:
            box = boxes[v.call]
            yield f'<g class="vertex" id="v{v.call}"><title>{escape(v.cell, quote=False)}, level {v.level}</title>'
            yield (
                f'<rect x="{box.left:.1f}" y="{box.top:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="4" '
                f'fill="{colours[v.level]}" stroke="#333"/>'
            )
            for k, line in enumerate(labels[v.call], 1):
                y = box.top + _PADDING / 2 + k * _LINE - 4
                yield f'<text x="{box.centre:.1f}" y="{y:.1f}" text-anchor="middle">{escape(line, quote=False)}</text>'
            yield "</g>"
        yield "</svg>"

    def _boxes(self, labels: dict[int, list[str]]) -> dict[int, _Box]:
        """Place boxes from the lowest level up: each vertex above the mean of its operands, or as close as possible."""
        reads = self._reads()
        height = max((len(lines) for lines in labels.values()), default=0) * _LINE + _PADDING
        boxes: dict[int, _Box] = {}
        by_level: list[list[DrawnVertex]] = [[] for _ in range(self.levels)]
        for v in self.vertices:
            by_level[v.level].append(v)
        for level, vertices in enumerate(by_level):
            centres = {v.call: [boxes[source].centre for source in reads.get(v.call, ())] for v in vertices}
            wanted = {call: sum(xs) / max(len(xs), 1) for call, xs in centres.items()}
            left = float(_MARGIN)
            top = _MARGIN + (self.levels - 1 - level) * (height + _BETWEEN_LEVELS)
            for v in sorted(vertices, key=lambda v: (wanted[v.call], v.call)):
                width = max(map(len, labels[v.call])) * _CHARACTER + 2 * _PADDING
                box = _Box(max(left, wanted[v.call] - width / 2), top, width, height)
                boxes[v.call] = box
                left = box.right + _GAP
        return boxes


def _quoted(text: str) -> str:
    """Escape text for a Graphviz string."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


class _Box(NamedTuple):
    left: float
    top: float
    width: float
    height: float

    @property
    def centre(self) -> float:
        return self.left + self.width / 2

    @property
    def right(self) -> float:
        return self.left + self.width


def level_colours(levels: int) -> list[str]:
    """Return a light colour for each level as "#rrggbb", from blue for leaves to red."""
    hues = (0.6 * (1 - level / max(levels - 1, 1)) for level in range(levels))
    return ["#" + "".join(f"{round(255 * c):02x}" for c in hls_to_rgb(hue, 0.82, 0.75)) for hue in hues]


def draw(graph: Graph, calls: int | None = None) -> Drawing:
    """Return a drawing of a graph.

    Args:
        calls: draw only the first `calls` vertices.

    Raises:
        GraphError: the graph is empty, or `calls` is not a positive number.
    """
    if not len(graph):
        raise GraphError("draw: the graph is empty: nothing was recorded on it")
    if calls is not None:
        calls = as_count(calls, "draw: calls", GraphError)
    topology = Topology(graph, calls)
    vertices: list[DrawnVertex] = []
    edges: Counter[tuple[int, int]] = Counter()
    for b in topology.blocks:
        for call, level, ints in zip(b.calls.tolist(), b.levels.tolist(), b.ints.tolist(), strict=True):
            vertices.append(DrawnVertex(call, b.cell.name, level, tuple(ints)))
        for rows, values in b.operands():
            read = np.column_stack([b.calls[rows], topology.value_call[values]])
            edges.update(map(tuple, read.tolist()))
    return Drawing(
        tuple(sorted(vertices, key=lambda v: v.call)),
        tuple(DrawnEdge(source, target, count) for (target, source), count in sorted(edges.items())),
        len(graph) - topology.n_calls,
    )
