"""The fixed part of fuzzing: some cases of each kind; errors are found and shown."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vpps
from tests.fuzz import __main__ as fuzz
from tests.fuzz import histories
from tests.fuzz.minimise import minimise
from tests.fuzz.program import LINES, Finding, execute, outcome, packed, sort_of

pytestmark = pytest.mark.cpu
SEED = 3
HISTORIES = 14


@pytest.mark.frameworks  # PyTorch checks graphs, too
@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("kind, n", [("graphs", 3), ("histories", HISTORIES), ("files", 60), ("interruptions", 12)])
def test_some_cases(kind: str, n: int, part: int) -> None:
    """Tests of maps and further graphs are in tests/record and tests/planner."""
    for k in range(n * part, n * part + n):
        number = k * len(fuzz.KINDS) + fuzz.KINDS.index(kind)
        made, case = fuzz.case_of(SEED, number)
        assert made == kind
        found = fuzz.finding(case)
        assert found is None, f"{found}: scripts/fuzz --seed {SEED} --case {number}"


@pytest.mark.host
def test_all_events_of_a_history_occur() -> None:
    """Checks that all events occur several times in the cases tested here."""
    numbers = range(fuzz.KINDS.index("histories"), 3 * HISTORIES * len(fuzz.KINDS), len(fuzz.KINDS))
    seen = Counter(event.name for number in numbers for event in fuzz.case_of(SEED, number)[1].events)
    assert min(seen[name] for name in histories.EVENTS) >= 4


def test_a_wrong_gradient_is_found_and_shown_by_a_short_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the fault, the program finds nothing in a separate process."""
    right = vpps.Handle.gradients

    def wrong(self: vpps.Handle, *args: Any, **options: Any) -> tuple[float, dict[str, np.ndarray[Any, Any]]]:
        loss, gradients = right(self, *args, **options)
        return loss, {name: g * (1.001 if name.startswith("W") else 1) for name, g in gradients.items()}

    monkeypatch.setattr(vpps.Handle, "gradients", wrong)
    cases = [fuzz.case_of(SEED, number)[1] for number in range(0, 200, len(fuzz.KINDS))]
    found = None
    for case in sorted(cases, key=lambda case: len(str(case))):  # a small case shrinks fast
        if found := fuzz.finding(case):
            break
    assert found is not None
    assert sort_of(found) == "gradient of #: relative error #"
    case, found = fuzz.smaller(case, found, seconds=600)
    program = packed(found.program)
    assert len(program) <= LINES
    assert len(case.cells) == len(case.cells[0].ops) == 1
    with pytest.raises(AssertionError):
        execute(program)
    monkeypatch.undo()
    assert outcome(program, tmp_path) == "finds nothing in a process of its own"


@pytest.mark.host
def test_a_case_becomes_as_small_as_it_can() -> None:
    case = (tuple(range(50)), True, 1000, b"some bytes")

    def fails(changed: Any) -> bool:
        numbers, _, big, _ = (*changed, *((), False, 0, b"")[len(changed) :])
        return len(changed) == 4 and 17 in numbers and big > 300

    assert minimise(case, fails, 10) == ((17,), False, 301, b"")


@pytest.mark.host
def test_programs_are_packed_without_a_change_of_what_they_do() -> None:
    lines = [
        "a = 1",
        "b = 2",
        "def f(x):",
        "    y = x + a",
        "    return y",
        "for k in range(3):",
        "    b += f(k)",
        "c = b",
    ]
    short = packed(lines)
    assert len(short) == 6
    assert execute(short)["c"] == execute(lines)["c"] == 8


@pytest.mark.host
def test_errors_that_differ_in_numbers_and_names_are_one_sort() -> None:
    said = ["gradient of W0_32: relative error 2.8e-03", "gradient of p1_8: relative error 1e-02"]
    assert len({sort_of(Finding(text, [])) for text in said}) == 1
