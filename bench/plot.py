"""Plots the lines that the benches print.

    python bench/plot.py results/cpu/2026-11-20-tree_fc.jsonl [--out FILE.svg]

The `bench` of the lines decides the figure: `batching`, `policies_split` (bars), `tree_fc` (curves), `workloads`
(several figures; `--figure` chooses one), `data_parallel` (predictions only). If a case has several lines, the last one
is used. Default output: the same name with .svg.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import batching_figures
import harness
import workload_figures
import workload_lines
from table import Line, commit_of, read, setting

# Okabe and Ito's palette, for any colour vision. A part has the same colour in both columns.
COLOURS = {
    "building": "#E69F00",
    "planning": "#F0E442",
    "encoding": "#D55E00",
    "launching": "#CC79A7",
    "load": "#882255",
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "gradients": "#009E73",
    "update": "#000000",
    "waiting": "#BBBBBB",
    "other": "#777777",
    "between": "#EEEEEE",
}


def batch_of(line: Line) -> int:
    """Return the batch size of a case."""
    return int(setting(line, "batch"))


def rest_of(line: Line, varied: tuple[str, ...] = ("batch",)) -> str:
    """Return the machine, and the settings that a figure does not show."""
    case = " ".join(word for word in line["case"].split() if word.partition("=")[0] not in varied)
    return f"{case}\n{line['machine']['cpu']}, {commit_of(line)}"


def host_share(axes: Any, lines: list[Line]) -> None:
    """Draw a curve per contender: the host's milliseconds per step (full) and share of a step (dashed, right axis)."""
    x = "leaves" if setting(lines[0], "leaves") else "batch"
    curves: dict[str, dict[int, tuple[float, float]]] = {}
    for line in lines:
        at = int(setting(line, x))
        curves.setdefault(line["program"], {})[at] = line["host"], line["host_share"]
        if "peer" in line:
            curves.setdefault(line["peer"], {})[at] = line["peer_host"], line["peer_host_share"]
    right = axes.twinx()
    colours = [colour for part, colour in COLOURS.items() if part not in ("between", "planning")]
    for colour, (name, curve) in zip(colours, sorted(curves.items()), strict=False):
        places = sorted(curve)
        axes.plot(places, [1e3 * curve[p][0] for p in places], "o-", color=colour, label=name, markersize=3)
        right.plot(places, [100 * curve[p][1] for p in places], "x--", color=colour, markersize=4, linewidth=0.8)
    places = sorted({p for curve in curves.values() for p in curve})
    axes.set_xscale("log", base=2)
    axes.set_xticks(places, [str(p) for p in places])
    axes.set_yscale("log")
    axes.set_ylabel("milliseconds of the host per step (full)")
    right.set_yscale("log")
    right.set_ylabel("% of the step (dashed)")
    axes.set_title("What preparing a mini-batch takes\n" + rest_of(lines[0], (x,)), fontsize=9)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.12, 1))


def draw_prediction(figure: Any, lines: list[Line]) -> None:
    """Draw a panel per model, with a curve per transport and link: the achieved share of linear speed-up."""
    predicted, measured = ([line for line in lines if line.get("prediction", False) is kind] for kind in (True, False))
    models = list(dict.fromkeys(line["case"].partition(" link")[0] for line in predicted))
    links = list(dict.fromkeys(setting(line, "link") for line in predicted))
    panels = figure.subplots(len(models), 1, sharey=True, squeeze=False)[:, 0]
    for axes, model in zip(panels, models, strict=True):
        for line in predicted:
            if line["case"].startswith(f"{model} "):
                colour = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")[links.index(setting(line, "link"))]
                style = "o-" if setting(line, "transport") == "mpi" else "x--"
                label = f"{setting(line, 'transport')}, {setting(line, 'link')}"
                percent = [100 * share for share in line["efficiency"]]
                axes.plot(line["hosts"], percent, style, color=colour, label=label, markersize=4, linewidth=1)
        hosts = predicted[0]["hosts"]
        axes.set_xscale("log", base=2)
        axes.set_xticks(hosts, [str(n) for n in hosts])
        axes.set_xlabel("hosts")
        axes.set_title(model, fontsize=9)
        axes.set_ylabel("% of hosts without exchange")
    panels[-1].legend(fontsize=8)
    made = f"{measured[-1]['machine']['cpu']}, {commit_of(measured[-1])}"
    figure.suptitle(
        f"A prediction for hosts of one core and half a batch\neach, fitted to two of them\n{made}", fontsize=9
    )


class Figure(NamedTuple):
    """Drawing rules for a bench's lines.

    Attributes:
        draw: draws onto axes.
        x: the setting along the axis; if there are several names, the first one that all lines have.
        label: the axis's label; "" for the setting's name.
        panels: further settings in which the lines can differ.
    """

    draw: Callable[[Any, list[Line]], None]
    x: tuple[str, ...] = ("batch",)
    label: str = "batch size"
    panels: tuple[str, ...] = ()


FIGURES = {
    "batching": Figure(batching_figures.batches, ("batch",), "", ("task", "granularity", "policy")),
    "policies_split": Figure(batching_figures.split, ("batch",), "", ("task", "mode", "policy")),
    "tree_fc": Figure(host_share, ("leaves", "batch"), ""),
}


PREDICTED = "data_parallel"


def draw_workloads(figure: Any, options: argparse.Namespace) -> str:
    """Draw one of the figures of workload_figures.py. Returns the commits that were measured."""
    lines = [line for line in workload_lines.read(options.lines) if line["bench"] == workload_lines.BENCH]
    wanted = options.tasks.split(",") if options.tasks else None
    cases = [
        case
        for case in workload_lines.cases_of(lines)
        if case.mode == options.mode and case.rates() and (wanted is None or case.task in wanted)
    ]
    if not cases:
        sys.exit(f"{options.lines}: no figures of mode {options.mode}{f' and {options.tasks}' if wanted else ''}")
    try:
        workload_figures.FIGURES[options.figure](figure, cases)
    except ValueError as error:
        sys.exit(f"{options.lines}: {error}")
    cores = {f"{case.settings['threads']} thread(s) on {case.settings['cores']} core(s)" for case in cases}
    made = f"{lines[-1]['machine']['cpu']}, {', '.join(sorted(cores))}"
    title = figure.get_suptitle() or ("inference" if options.mode == "infer" else "training")
    made = textwrap.fill(made, int(14 * figure.get_figwidth()))
    figure.suptitle(f"{title}\n{made}", fontsize=9)
    return ", ".join(sorted({commit_of(line) for line in lines}))


def main() -> None:
    """Read lines, draw them, and write the figure."""
    parser = harness.parser(__doc__, "lines", mode="train")
    parser.add_argument("--out", type=Path, metavar="FILE.svg")
    parser.add_argument(
        "--figure", choices=list(workload_figures.FIGURES), default="ratios", help="of the lines of workloads.py"
    )
    parser.add_argument("--tasks", metavar="NAME,...", help="of the lines of workloads.py (default: all)")
    options = parser.parse_args()
    try:
        import matplotlib
    except ImportError:
        sys.exit("figures need matplotlib: pip install matplotlib")
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "vpps"  # the same lines give the same file
    import matplotlib.pyplot as plt

    latest = read([options.lines], {*FIGURES, PREDICTED, workload_lines.BENCH, workload_lines.MEMORY})
    benches = {line["bench"] for line in latest}
    out = options.out or options.lines.with_suffix(".svg")
    if benches and benches <= {workload_lines.BENCH, workload_lines.MEMORY}:
        figure = plt.figure(layout="constrained")
        commits = draw_workloads(figure, options)
        figure.savefig(out, metadata={"Date": None, "Description": commits})
        print(out)
        return
    if benches == {PREDICTED}:
        figure = plt.figure(figsize=(4.2, 7), layout="constrained")
        draw_prediction(figure, latest)
        figure.savefig(out, metadata={"Date": None})
        print(out)
        return
    if len(benches) != 1 or not benches <= FIGURES.keys():
        sys.exit(f"{options.lines}: expected lines of one bench of {', '.join(FIGURES)}, found {sorted(benches)}")
    kind = FIGURES[benches.pop()]
    x = next(name for name in kind.x if all(setting(line, name) for line in latest))
    lines = sorted(latest, key=lambda line: int(setting(line, x)))
    if len({rest_of(line, (x, *kind.panels)) for line in lines}) > 1:
        sys.exit(f"{options.lines}: its lines have different settings, machines or commits; keep those of one run")
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    kind.draw(axes, lines)
    axes.set_xlabel(kind.label or x)
    figure.savefig(out, metadata={"Date": None})
    print(out)


if __name__ == "__main__":
    main()
