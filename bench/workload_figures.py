"""Draws the output of workloads.py: an overview of all ratios, and the papers' own figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from workers import FORMS
from workload_lines import Case

# Okabe and Ito's palette: one colour per program in all figures.
COLOURS = dict(
    zip(
        (form.shown for form in FORMS.values()),
        ("#000000", "#E69F00", "#D55E00", "#CC79A7", "#0072B2", "#56B4E9", "#009E73", "#F0E442"),
        strict=True,
    )
)
MARKERS = dict(zip((form.shown for form in FORMS.values()), "osDx^v^v", strict=True))
CAVS = ("fixed-lstm", "var-lstm", "tree-fc", "tree-lstm")
CAVS_BATCH = 64  # batch size if the hidden size varies


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _grid(figure: Any, n: int, columns: int) -> list[Any]:
    """Return n axes in rows of at most `columns`."""
    rows = -(-n // columns)
    axes = figure.subplots(rows, min(n, columns), squeeze=False).flatten().tolist()
    for unused in axes[n:]:
        unused.set_visible(False)
    return axes[:n]


def _legend(figure: Any, axes: Sequence[Any]) -> None:
    """Draw one legend for all axes, below them."""
    handles = {label: h for ax in axes for h, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=8)


def _batch_axis(axes: Any, sizes: Iterable[int]) -> None:
    ticks = sorted(set(sizes))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(size) for size in ticks], fontsize=7)
    axes.tick_params(axis="y", which="both", labelsize=7)


def ratios(figure: Any, cases: Sequence[Case]) -> None:
    """Draw the main figure: the ratio to the best peer, with a row per task and a column per batch size.

    Left: compared with peers as shipped; right: with the strongest of all peers.
    """
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    several = len({(case.task, case.hidden) for case in cases}) > len({case.task for case in cases})
    rows = _distinct((case.task, case.hidden) for case in cases)
    sizes = sorted({case.batch for case in cases})
    figure.set_size_inches(2.4 + 1.1 * len(sizes), 1.3 + 0.3 * len(rows))
    # Blue is faster, orange slower, white equal, also for the colour-blind. 1 is a third of the way from 1/3 to 9.
    colours = LinearSegmentedColormap.from_list("ratio", ["#D55E00", "#FFFFFF", "#56B4E9", "#0072B2"])
    bounds = 1 / 3, 9
    for place, (axes, tuned) in enumerate(zip(figure.subplots(1, 2, sharey=True), (False, True), strict=True)):
        table = [[math.nan] * len(sizes) for _ in rows]
        for case in cases:
            ratio = case.best_ratio(tuned)
            table[rows.index((case.task, case.hidden))][sizes.index(case.batch)] = math.nan if ratio is None else ratio
        axes.imshow(table, aspect="auto", cmap=colours, norm=LogNorm(*bounds), interpolation="nearest")
        for y, row in enumerate(table):
            for x, value in enumerate(row):
                if not math.isnan(value):
                    dark = value > 3.5
                    axes.text(
                        x, y, f"{value:.1f}", ha="center", va="center", fontsize=7, color="white" if dark else "black"
                    )
        axes.set_xticks(range(len(sizes)), [str(size) for size in sizes], fontsize=7)
        axes.set_xlabel("batch size", fontsize=8)
        axes.set_title("strongest tuned peer" if tuned else "best peer as shipped", fontsize=9)
        if place == 0:
            names = [f"{task}, {hidden}" if several else task for task, hidden in rows]
            axes.set_yticks(range(len(rows)), names, fontsize=8)
    mode = "inference" if cases[0].mode == "infer" else "training"
    figure.suptitle(f"vpps: times as fast as the peer, {mode}")


def strongest(figure: Any, cases: Sequence[Case]) -> None:
    """Draw README's figure: the ratio to the strongest peer, with a row per task and a mark per batch size."""
    found = {(case.task, case.batch): ratio for case in cases if (ratio := case.best_ratio(tuned=True))}
    sizes = sorted({batch for _, batch in found})
    means = {task: statistics.geometric_mean(found[key] for key in found if key[0] == task) for task, _ in found}
    tasks = sorted(means, key=means.__getitem__)
    figure.set_size_inches(4.2, 0.7 + 0.24 * len(tasks))
    axes = figure.subplots()
    for size, colour, marker in zip(sizes, ("#E69F00", "#0072B2", "#009E73", "#CC79A7"), "osD^", strict=False):
        points = [(found[task, size], y) for y, task in enumerate(tasks) if (task, size) in found]
        axes.plot(
            *zip(*points, strict=True),
            marker,
            color=colour,
            markersize=6,
            markerfacecolor="none",
            label=f"batch {size}",
        )
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlim(left=0)
    axes.set_xlabel("times as fast as the strongest peer\n(right of 1: vpps is faster)", fontsize=8)
    axes.set_yticks(range(len(tasks)), tasks, fontsize=9)
    axes.set_ylabel("network", fontsize=8)
    axes.grid(linewidth=0.3)
    axes.legend(fontsize=9, loc="lower right")
    figure.suptitle("training, one step of a mini-batch")


def throughput(figure: Any, cases: Sequence[Case]) -> None:
    """Draw figures 8 and 12 of the VPPS paper: examples per second by batch size, a panel per task."""
    _panels(figure, cases, _distinct(case.task for case in cases), lambda case: case.task, str)


def hidden(figure: Any, cases: Sequence[Case]) -> None:
    """Draw figure 9 of the VPPS paper: examples per second by batch size, a panel per hidden size of one task."""
    task = max(
        _distinct(case.task for case in cases), key=lambda name: len({c.hidden for c in cases if c.task == name})
    )
    chosen = [case for case in cases if case.task == task]
    sizes = sorted({case.hidden for case in chosen})
    _panels(figure, chosen, sizes, lambda case: case.hidden, lambda size: f"{task}, hidden {size}")


def _panels(
    figure: Any, cases: Sequence[Case], keys: Sequence[Any], key: Callable[[Case], Any], title: Callable[[Any], str]
) -> None:
    columns = min(len(keys), 4)
    figure.set_size_inches(2.9 * columns + 0.4, 2.3 * -(-len(keys) // columns) + 0.8)
    panels = _grid(figure, len(keys), columns)
    for axes, wanted in zip(panels, keys, strict=True):
        own = [case for case in cases if key(case) == wanted]
        for name in _programs(own):
            points = sorted((case.batch, case.rates()[name]) for case in own if name in case.rates())
            axes.plot(
                *zip(*points, strict=True), color=COLOURS[name], marker=MARKERS[name], markersize=3.5,
                linewidth=1.8 if name == "vpps" else 1, label=name,
            )  # fmt: skip
        _batch_axis(axes, (case.batch for case in own))
        axes.set_ylim(bottom=0)
        axes.set_title(title(wanted), fontsize=9)
    for axes in panels:
        axes.set_xlabel("batch size", fontsize=8)
    panels[0].set_ylabel("examples/s", fontsize=8)
    _legend(figure, panels)


def _programs(cases: Iterable[Case]) -> list[str]:
    """Return the programs' names, in the same order for all figures."""
    used = {name for case in cases for name in case.rates()}
    return [form.shown for form in FORMS.values() if form.shown in used]


def cavs(figure: Any, cases: Sequence[Case]) -> None:
    """Draw figure 8 of the Cavs paper: seconds per 1000 examples, by batch size and by hidden size (batch size 64)."""
    tasks = [task for task in CAVS if any(case.task == task for case in cases)]
    if not tasks:
        raise ValueError(f"none of {', '.join(CAVS)} was measured")
    figure.set_size_inches(2.9 * len(tasks) + 0.4, 5)
    panels = figure.subplots(2, len(tasks), squeeze=False)
    for column, task in enumerate(tasks):
        own = [case for case in cases if case.task == task]
        usual = max(own, key=lambda case: sum(other.hidden == case.hidden for other in own)).hidden
        by_batch = [case for case in own if case.hidden == usual]
        by_hidden = [case for case in own if case.batch == CAVS_BATCH]
        above, below = panels[0][column], panels[1][column]
        _bars(above, by_batch, lambda case: case.batch)
        _bars(below, by_hidden, lambda case: case.hidden)
        above.set_title(f"{task}, hidden {usual}", fontsize=9)
        above.set_xlabel("batch size", fontsize=8)
        below.set_xlabel(f"hidden size, batch {CAVS_BATCH}", fontsize=8)
    panels[0][0].set_ylabel("seconds for 1000 examples", fontsize=8)
    panels[1][0].set_ylabel("seconds for 1000 examples", fontsize=8)
    _legend(figure, panels.flatten().tolist())


def _bars(axes: Any, cases: Sequence[Case], key: Callable[[Case], int]) -> None:
    """Draw groups of bars, one per program; seconds per 1000 examples, on a log scale as in the paper."""
    keys, names = sorted({key(case) for case in cases}), _programs(cases)
    for place, name in enumerate(names):
        rates = {key(case): case.rates()[name] for case in cases if name in case.rates()}
        xs = [keys.index(k) + (place - (len(names) - 1) / 2) * 0.8 / len(names) for k in rates]
        axes.bar(xs, [1000 / rate for rate in rates.values()], 0.8 / len(names), color=COLOURS[name], label=name)
    axes.set_xticks(range(len(keys)), [str(k) for k in keys], fontsize=7)
    axes.set_yscale("log")
    axes.tick_params(axis="y", which="both", labelsize=7)


def edbatch(figure: Any, cases: Sequence[Case]) -> None:
    """Draw figure 6 of the ED-Batch paper: inference at each program's best batch size, by model size."""
    infer = [case for case in cases if case.mode == "infer"]
    if not infer:
        raise ValueError("no lines of --mode infer")
    tasks = _distinct(case.task for case in infer)
    columns = min(len(tasks), 4)
    figure.set_size_inches(2.9 * columns + 0.4, 2.3 * -(-len(tasks) // columns) + 0.8)
    panels = _grid(figure, len(tasks), columns)
    for axes, task in zip(panels, tasks, strict=True):
        own = [case for case in infer if case.task == task]
        sizes, names = sorted({case.hidden for case in own}), _programs(own)
        for place, name in enumerate(names):
            best = [max((c.rates().get(name, 0) for c in own if c.hidden == size), default=0) for size in sizes]
            xs = [k + (place - (len(names) - 1) / 2) * 0.8 / len(names) for k in range(len(sizes))]
            axes.bar(xs, best, 0.8 / len(names), color=COLOURS[name], label=name)
        axes.set_xticks(range(len(sizes)), [str(size) for size in sizes], fontsize=7)
        axes.set_yscale("log")
        axes.tick_params(axis="y", which="both", labelsize=7)
        axes.set_title(task, fontsize=9)
        axes.set_xlabel("hidden size", fontsize=8)
    panels[0].set_ylabel("examples/s, best batch size", fontsize=8)
    _legend(figure, panels)


FIGURES: dict[str, Callable[[Any, Sequence[Case]], None]] = {
    "ratios": ratios,
    "strongest": strongest,
    "throughput": throughput,
    "hidden": hidden,
    "cavs": cavs,
    "edbatch": edbatch,
}
