"""Markdown tables of batching.py's output.

    python bench/batching_table.py bench/results/cpu/DATE-batching.jsonl

Each granularity has a table with a row per workload and a column per policy: batches, and their ratio to the lower
bound. A second table compares the policy with ED-Batch's program, at that program's granularity. Each is divided by its
own bound, because mini-batches differ. At vpps's own granularity, a table of stages and barriers follows: the cost in a
persistent kernel. The last table gives the cost of learning, also for ED-Batch's program (here and in its paper).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence

import harness
from table import Line, markdown, read, setting, three_digits

BENCH = "batching"
WITHIN = "-within"


def granularities_of(lines: Iterable[Line]) -> list[str]:
    """Return the granularities that occur in the lines."""
    return list(dict.fromkeys(setting(line, "granularity") for line in lines))


def tasks_of(lines: Iterable[Line], granularity: str) -> list[str]:
    """Return the tasks measured at a granularity."""
    return list(dict.fromkeys(setting(line, "task") for line in lines if setting(line, "granularity") == granularity))


def policies_of(lines: Iterable[Line], granularity: str, task: str) -> dict[str, Line]:
    """Return a workload's lines by policy."""
    wanted = granularity, task
    return {
        setting(line, "policy"): line
        for line in lines
        if (setting(line, "granularity"), setting(line, "task")) == wanted
    }


def table(
    lines: Sequence[Line], granularity: str, cell: Callable[[Line], str], first: Callable[[Line], str] | None = None
) -> str:
    """Return a table with a row per workload and a column per policy.

    Args:
        first: returns the first column's text, from any line of the workload.
    """
    tasks = tasks_of(lines, granularity)
    rows = {task: policies_of(lines, granularity, task) for task in tasks}
    policies = list(dict.fromkeys(policy for row in rows.values() for policy in row))
    shown = [["", *([first.__name__] if first else []), *policies]]
    for task, row in rows.items():
        before = [first(next(iter(row.values())))] if first else []
        shown.append([task, *before, *(cell(row[policy]) if policy in row else "" for policy in policies)])
    return markdown(shown)


def batches(line: Line) -> str:
    """Format batches and their ratio to the bound."""
    return f"{line['value']:.0f} · {line['over_bound']:.2f}"


def bound(line: Line) -> str:
    """Format the lower bound on batches."""
    return f"{line['bound']:.0f}"


def beside_program(line: Line) -> str:
    """Format the ratios to the bounds: vpps's policy, then ED-Batch's program."""
    program = line.get("edbatch")
    return "" if program is None else f"{line['over_bound']:.2f} · {program['batches'] / program['bound']:.2f}"


def barriers(line: Line) -> str:
    """Format the stages, then the barriers in a training step and in inference."""
    return f"{line['stages']:.0f} · {line['barriers']:.0f} · {line['barriers_infer']:.0f}"


def learning(lines: Iterable[Line]) -> str:
    """Return a table with a row per machine that covers the whole graph."""
    shown = [["", "encoding", "ms", "its program", "its paper", "trials", "states", "batches"]]
    for line in lines:
        theirs = line.get("edbatch_learning", {})
        seconds = line["seconds"], theirs.get("seconds"), theirs.get("paper_seconds")
        milliseconds = [three_digits(1e3 * s) if s is not None else "" for s in seconds]
        trials = f"{line['trials']}" + (f" ({theirs['paper_trials']})" if "paper_trials" in theirs else "")
        states = f"{line['states']}" + (f" ({theirs['states']})" if "states" in theirs else "")
        encoding = setting(line, "policy").removeprefix("fsm-")
        of_bound = f"{line['learned']['batches']} of {line['learned']['bound']}"
        shown.append([setting(line, "task"), encoding, *milliseconds, trials, states, of_bound])
    return markdown(shown)


def tables(lines: Sequence[Line]) -> str:
    """Return all tables as Markdown."""
    parts: list[str] = []
    learned = [line for line in lines if "seconds" in line and WITHIN not in line["case"]]
    for granularity in granularities_of(lines):
        of_program = granularity == "program"
        whose = "ED-Batch's program" if of_program else "vpps"
        parts.append(f"Batches, and times the lower bound; vertices as {whose} has them\n")
        whole = [line for line in lines if WITHIN not in line["case"]]
        parts.append(table(whole, granularity, batches, bound) + "\n")
        if of_program:
            alone = [line for line in lines if WITHIN in line["case"]]
            parts.append("The same, components of types one after the other\n")
            parts.append(table(alone, granularity, batches, bound) + "\n")
            compared = [line for line in lines if "edbatch" in line]
            if compared:
                parts.append("Times the lower bound: here · what its program launches\n")
                parts.append(table(compared, granularity, beside_program) + "\n")
        else:
            parts.append("Stages · barriers of a training step · of inference\n")
            parts.append(table(lines, granularity, barriers) + "\n")
    if learned:
        parts.append("Learning machines: ms of compiled code; trials (of the paper), states (of its program)\n")
        parts.append(learning(learned) + "\n")
    return "\n".join(parts)


def main() -> None:
    """Print all the tables."""
    options = harness.parser(__doc__, "lines").parse_args()
    lines = read([options.lines], (BENCH,))
    if not lines:
        sys.exit(f"no lines of {BENCH}.py in {options.lines}")
    print(tables(lines), end="")


if __name__ == "__main__":
    main()
