"""Markdown tables of the lines of batching.py.

    python bench/batching_table.py bench/results/cpu/DATE-batching.jsonl

Per granularity a row per workload and a column per policy: batches, and times the lower bound. At that of ED-Batch's
program a second table compares with what that launches; both over their own bounds, as the mini-batches differ. At
vpps's own granularity stages and barriers follow, which a persistent kernel pays for.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from table import markdown, three_digits

Line = dict[str, Any]
BENCH = "batching"


def read(path: Path) -> list[Line]:
    """The lines of a file that are of this bench; of several of one case the last one."""
    found = {}
    for text in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        if line["bench"] == BENCH:
            found[line["case"]] = line
    return list(found.values())


def setting(line: Line, name: str) -> str:
    """A setting of a case."""
    words = dict(word.split("=", 1) for word in line["case"].split())
    return words[name]


def granularities_of(lines: Iterable[Line]) -> list[str]:
    """Those that there are."""
    return list(dict.fromkeys(setting(line, "granularity") for line in lines))


def tasks_of(lines: Iterable[Line], granularity: str) -> list[str]:
    """Those that were measured at a granularity."""
    return list(dict.fromkeys(setting(line, "task") for line in lines if setting(line, "granularity") == granularity))


def policies_of(lines: Iterable[Line], granularity: str, task: str) -> dict[str, Line]:
    """Lines of a workload by policy."""
    wanted = granularity, task
    return {
        setting(line, "policy"): line
        for line in lines
        if (setting(line, "granularity"), setting(line, "task")) == wanted
    }


def table(
    lines: Sequence[Line], granularity: str, cell: Callable[[Line], str], bound: Callable[[Line], str] | None = None
) -> str:
    """A row per workload, a column per policy.

    Args:
        bound: what the first column has, from any line of the workload.
    """
    tasks = tasks_of(lines, granularity)
    rows = {task: policies_of(lines, granularity, task) for task in tasks}
    policies = list(dict.fromkeys(policy for row in rows.values() for policy in row))
    shown = [["", *(["bound"] if bound else []), *policies]]
    for task, row in rows.items():
        first = [bound(next(iter(row.values())))] if bound else []
        shown.append([task, *first, *(cell(row[policy]) if policy in row else "" for policy in policies)])
    return markdown(shown)


def batches(line: Line) -> str:
    """Batches, and times the bound."""
    return f"{line['value']:.0f} · {line['over_bound']:.2f}"


def beside_program(line: Line) -> str:
    """Times the bound, here and there."""
    program = line.get("edbatch")
    return "" if program is None else f"{line['over_bound']:.2f} · {program['batches'] / program['bound']:.2f}"


def barriers(line: Line) -> str:
    """Stages; barriers of a training step, of inference."""
    return f"{line['stages']:.0f} · {line['barriers']:.0f} · {line['barriers_infer']:.0f}"


def gathered(line: Line) -> str:
    """Megabytes through index lists and thousands of words in them, per layout."""
    found = line["gathered"].values()
    return " / ".join(f"{three_digits(of['bytes'] / 1e6)} · {three_digits(of['list_words'] / 1e3)}" for of in found)


def tables(lines: Sequence[Line]) -> str:
    """All of them."""
    parts: list[str] = []
    for granularity in granularities_of(lines):
        of_program = granularity == "program"
        whose = "ED-Batch's program" if of_program else "vpps"
        parts.append(f"Batches, and times the lower bound; vertices as {whose} has them\n")
        parts.append(table(lines, granularity, batches, lambda line: f"{line['bound']:.0f}") + "\n")
        if of_program:
            compared = [line for line in lines if "edbatch" in line]
            if compared:
                parts.append("Times the lower bound: here · what its program launches\n")
                parts.append(table(compared, granularity, beside_program) + "\n")
        else:
            parts.append("Stages · barriers of a training step · of inference\n")
            parts.append(table(lines, granularity, barriers) + "\n")
            layouts = " / ".join(lines[-1]["gathered"])
            parts.append(f"MB through index lists · thousands of words in lists; layouts {layouts}\n")
            parts.append(table(lines, granularity, gathered) + "\n")
    return "\n".join(parts)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", type=Path, metavar="FILE.jsonl")
    options = parser.parse_args()
    lines = read(options.lines)
    if not lines:
        sys.exit(f"{options.lines}: no lines of {BENCH}.py")
    print(tables(lines), end="")


if __name__ == "__main__":
    main()
