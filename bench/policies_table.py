"""Markdown tables of the output of policies.py.

    python bench/policies_table.py bench/results/cpu/DATE-policies.jsonl

Each mode and hidden size has a table with a row per workload and batch size: examples per second with `depth`, and the
ratio of each other policy to it; or the milliseconds of a mini-batch: construction, scheduling, execution.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import harness
from table import Line, markdown, read, setting, three_digits

BENCH, SPLIT = "policies", "policies_split"
BASELINE = "depth"
PARTS = ("construction", "scheduling", "execution")

Group = tuple[str, ...]


def rows_of(lines: Iterable[Line], bench: str) -> dict[Group, dict[Group, dict[str, Line]]]:
    """Return the lines by (mode, hidden size), then (workload, batch size), then policy."""
    found: dict[Group, dict[Group, dict[str, Line]]] = {}
    for line in lines:
        if line["bench"] == bench:
            of_table = found.setdefault((setting(line, "mode"), setting(line, "hidden")), {})
            row = of_table.setdefault((setting(line, "task"), setting(line, "batch")), {})
            row[setting(line, "policy")] = line
    return found


def throughput(rows: dict[Group, dict[str, Line]]) -> str:
    """Return a table with a row per workload and batch size."""
    policies = list(dict.fromkeys(policy for row in rows.values() for policy in row))
    others = [policy for policy in policies if policy != BASELINE]
    shown = [["", "batch", f"{BASELINE}, examples/s", *others]]
    for (task, batch), row in rows.items():
        cells = [three_digits(row[BASELINE]["value"]) if BASELINE in row else ""]
        cells += [f"{row[policy]['ratio']:.2f}" if policy in row else "" for policy in others]
        shown.append([task, batch, *cells])
    return markdown(shown)


def split(rows: dict[Group, dict[str, Line]]) -> str:
    """Return a table with a row per workload and a column per policy."""
    policies = list(dict.fromkeys(policy for row in rows.values() for policy in row))
    shown = [["", "batch", *policies]]
    for (task, batch), row in rows.items():
        cells = [" + ".join(f"{row[p][part]:.2f}" for part in PARTS) if p in row else "" for p in policies]
        shown.append([task, batch, *cells])
    return markdown(shown)


def tables(lines: Sequence[Line]) -> str:
    """Return all tables as Markdown."""
    parts: list[str] = []
    for bench, draw, what in (
        (BENCH, throughput, f"times the examples/s of {BASELINE}"),
        (SPLIT, split, f"ms of a mini-batch: {' + '.join(PARTS)}"),
    ):
        for (mode, hidden), rows in rows_of(lines, bench).items():
            named: Any = {"train": "Training", "infer": "Inference"}[mode]
            parts += [f"{named}, hidden {hidden}: {what}\n", draw(rows) + "\n"]
    return "\n".join(parts)


def main() -> None:
    """Print all the tables."""
    parser = harness.parser(__doc__, "lines")
    options = parser.parse_args()
    lines = read([options.lines], (BENCH, SPLIT))
    if not lines:
        sys.exit(f"{options.lines}: no lines of {BENCH}.py")
    print(tables(lines), end="")


if __name__ == "__main__":
    main()
