"""Markdown tables from the lines of workloads.py.

    python bench/table.py bench/results/cpu/DATE-workloads.jsonl [--mode infer] [--batch-sizes 1,8,32,128]

A cell has vpps's examples per second, its ratio to the best peer as shipped, and (if measured) its ratio to the
strongest of all peers, tuned ones included: `1,240 · 3.10 · 2.24`. A memory table follows if the lines include memory.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import harness
import workload_lines
from workload_lines import TUNED, Case, Memory

Line = dict[str, Any]
"""One line printed by a bench."""


def read(paths: Iterable[Path], benches: Collection[str]) -> list[Line]:
    """Return these benches' lines in some files; of lines with equal case, program and peer, only the last."""
    found: dict[Any, Line] = {}
    for path in paths:
        for text in path.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            if line["bench"] in benches:
                found[line["bench"], line["case"], line.get("program"), line.get("peer")] = line
    return list(found.values())


def setting(line: Line, name: str) -> str:
    """Return a setting of a case, such as "batch"; "" if it has none."""
    return dict(word.split("=", 1) for word in line["case"].split() if "=" in word).get(name, "")


def commit_of(line: Line) -> str:
    """Return the commit as text."""
    return f"commit {(line['commit']['id'] or 'unknown')[:9]}"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a table, whose first row is the head; numbers are right-aligned."""
    head, *body = rows
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *body))


def three_digits(value: float) -> str:
    """Format a number with 3 digits and no exponent."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"


def cell(case: Case | None) -> str:
    """Return the table cell of a case."""
    if case is None or not case.vpps:
        return ""
    kinds = [False, True] if TUNED & case.peers.keys() else [False]
    ratios = [case.best_ratio(tuned) for tuned in kinds]
    return " · ".join([three_digits(case.vpps), *("–" if ratio is None else f"{ratio:.2f}" for ratio in ratios)])


def speed(cases: Sequence[Case], batch_sizes: Sequence[int] | None = None) -> str:
    """Return a table with a row per task and model size, and a column per batch size."""
    sizes = batch_sizes or sorted({case.batch for case in cases})
    several = len({(case.task, case.hidden) for case in cases}) > len({case.task for case in cases})
    rows: dict[str, dict[int, Case]] = {}
    for case in cases:
        name = f"{case.task}, {case.hidden}" if several else case.task
        rows.setdefault(name, {})[case.batch] = case
    head = ["", *(str(size) for size in sizes)]
    return markdown([head, *([name, *(cell(row.get(size)) for size in sizes)] for name, row in rows.items())])


def memory(found: Iterable[Memory]) -> str:
    """Return a table with a row per task."""
    rows = [
        [m.task, str(m.batch), m.peer, three_digits(m.vpps), three_digits(m.peer_value), f"{m.peer_value / m.vpps:.2g}"]
        for m in found
    ]
    return markdown([["", "batch", "peer", "vpps MB", "peer MB", "times less"], *rows])


def main() -> None:
    """Print all the tables."""
    parser = harness.parser(__doc__, "lines", mode="train", batch_sizes=None)
    options = parser.parse_args()
    lines = workload_lines.read(options.lines)
    cases = [case for case in workload_lines.cases_of(lines) if case.mode == options.mode]
    used = [m for m in workload_lines.memory_of(lines) if m.mode == options.mode]
    if not cases and not used:
        sys.exit(f"{options.lines}: no lines of workloads.py with mode={options.mode}")
    if cases:
        print(speed(cases, options.batch_sizes))
    if used:
        print("\n" + memory(used) if cases else memory(used))


if __name__ == "__main__":
    main()
