"""Plots the output of batching.py and policies.py: ED-Batch's figures 7 and 9."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batching_table import WITHIN, granularities_of, policies_of, tasks_of
from policies_table import PARTS
from table import Line, commit_of, setting

# Okabe and Ito's palette; encodings of a machine share a hue.
COLOURS = {
    "depth": "#BBBBBB",
    "agenda": "#777777",
    "sinks-last": "#009E73",
    "sufficient": "#E69F00",
    "critical": "#D55E00",
    "fsm-base": "#B5DDF5",
    "fsm-max": "#56B4E9",
    "fsm-sort": "#0072B2",
    "fsm-critical": "#003B5C",
    "fsm-base-phase": "#F2CFE2",
    "fsm-max-phase": "#CC79A7",
    "fsm-sort-phase": "#882255",
    "auto": "#000000",  # in files from November 2026: policy chosen by a cost model
}
OF_PARTS = dict(zip(PARTS, ("#E69F00", "#D55E00", "#56B4E9"), strict=True))
ROW = 4  # panels per row


def _panels(axes: Any, n: int) -> list[Any]:
    """Return axes for n panels, row by row."""
    rows = -(-n // ROW)
    axes.figure.set_size_inches(11, 0.8 + 2.0 * rows)
    axes.set_axis_off()
    found = []
    for place in range(n):
        row, column = divmod(place, ROW)
        box = (column / ROW + 0.03, 1 - (row + 0.85) / rows, 1 / ROW - 0.05, 0.72 / rows)
        inner = axes.inset_axes(box)
        inner.tick_params(axis="y", labelsize=6)
        inner.set_xticks([])
        found.append(inner)
    return found


def _place(policy: str) -> tuple[int, bool]:
    """Return the drawing order of a policy, and True if it applies within components."""
    kind = policy.removesuffix(WITHIN)
    return list(COLOURS).index(kind), kind != policy


def batches(axes: Any, lines: Sequence[Line]) -> None:
    """Draw a panel per workload and granularity, with a bar per policy: batches divided by the lower bound. Crosses:
    batches of ED-Batch's program divided by its own bound. Policies within components are hatched."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    panels = [(g, task) for g in granularities_of(lines) for task in tasks_of(lines, g)]
    used: dict[str, None] = {}
    for place, ((granularity, task), inner) in enumerate(zip(panels, _panels(axes, len(panels)), strict=True)):
        shown = policies_of(lines, granularity, task)
        for x, policy in enumerate(sorted(shown, key=_place)):
            line = shown[policy]
            kind = policy.removesuffix(WITHIN)
            used[kind] = None
            hatch = "//" if kind != policy else None
            inner.bar(x, line["over_bound"], 0.85, color=COLOURS[kind], hatch=hatch, edgecolor="white", linewidth=0.3)
            inner.text(
                x, line["over_bound"], f" {line['value']:.0f}", rotation=90, ha="center", va="bottom", fontsize=5
            )
            if (program := line.get("edbatch")) and kind == policy:
                inner.plot(x, program["batches"] / program["bound"], "kx", markersize=4)
        inner.axhline(1, color="black", linewidth=0.6)
        inner.set_ylim(0, 1.15 * inner.get_ylim()[1])
        inner.set_title(f"{task}, {granularity}", fontsize=7)
        if place % ROW == 0:
            inner.set_ylabel("times the bound", fontsize=7)
    handles: list[Any] = [Patch(color=COLOURS[kind], label=kind) for kind in COLOURS if kind in used]
    handles.append(Patch(facecolor="white", edgecolor="black", hatch="//", label="within components"))
    handles.append(Line2D([], [], color="black", marker="x", linestyle="", label="ED-Batch's program"))
    axes.legend(handles=handles, fontsize=6, loc="upper left", bbox_to_anchor=(1, 1))
    first = lines[0]
    about = f"batch {first['case'].rpartition('=')[2]}, {commit_of(first)}"
    axes.set_title(f"Batches of a mini-batch over the lower bound; above the bars their number\n{about}", fontsize=9)


def split(axes: Any, lines: Sequence[Line]) -> None:
    """Draw a panel per workload and mode, with a bar per policy: milliseconds per mini-batch, by purpose."""
    from matplotlib.patches import Patch

    panels = list(dict.fromkeys((setting(line, "mode"), setting(line, "task")) for line in lines))
    for place, ((mode, task), inner) in enumerate(zip(panels, _panels(axes, len(panels)), strict=True)):
        shown = [line for line in lines if (setting(line, "mode"), setting(line, "task")) == (mode, task)]
        for x, line in enumerate(shown):
            bottom = 0.0
            for part, colour in OF_PARTS.items():
                inner.bar(x, line[part], 0.85, bottom, color=colour)
                bottom += line[part]
        names = [setting(line, "policy") for line in shown]
        inner.set_xticks(range(len(shown)), names, fontsize=5, rotation=60, ha="right")
        inner.set_title(f"{task}, {mode}", fontsize=7)
        if place % ROW == 0:
            inner.set_ylabel("milliseconds", fontsize=7)
    handles = [Patch(color=colour, label=part) for part, colour in OF_PARTS.items()]
    axes.legend(handles=handles, fontsize=6, loc="upper left", bbox_to_anchor=(1, 1))
    batch, hidden, threads = (setting(lines[0], name) for name in ("batch", "hidden", "threads"))
    machine = f"{lines[0]['machine']['cpu']}, {commit_of(lines[0])}"
    settings = f"batch {batch}, hidden {hidden}, {threads} virtual processor(s)"
    axes.set_title(f"Where the time of a mini-batch goes: {settings}\n{machine}", fontsize=9)
