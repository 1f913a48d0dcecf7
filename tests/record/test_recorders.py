"""Graphs are recorded by compiled code, in Python, or in Python without the call cache, always with the same result."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

import vpps
from tests.comparison import contents_of
from tests.fuzz import graphs, maps
from tests.fuzz.program import execute
from vpps.record import vertices

pytestmark = pytest.mark.host

RECORDERS = ("careful", "python", "compiled")
"""The first one treats every call as different from all earlier ones."""


@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("kind", [graphs, maps], ids=["calls", "maps"])
def test_random_programs(
    kind: object, part: int, use_recorder: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls of a few recurrent cells, with ints, lists and parameters; maps of tables, lists, rows; `distinct`."""
    for number in range(15 * part, 15 * part + 15):
        lines = kind.draw(Random(number)).program()
        recorded = []
        for recorder in RECORDERS:
            with monkeypatch.context() as patch:
                if recorder == "careful":
                    patch.setattr(vertices.Tape, "recorder", lambda *_: lambda graph, args: None)
                use_recorder("compiled" if recorder == "compiled" else "python")
                made = execute(lines)
            recorded.append([contents_of(graph) for graph in made.values() if isinstance(graph, vpps.Graph)])
        assert recorded[0] == recorded[1] == recorded[2], lines
