"""Figures from the lines that the benches print.

    python bench/plot.py results/cpu/2026-11-20-breakdown.jsonl [--out FILE.svg]

The figure follows from the `bench` of the lines: `breakdown` (stacked bars) or `weight_bytes` (lines). Of several lines
of one case the last counts. Default output: the same name with .svg.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Line = dict[str, Any]

# Okabe and Ito's palette: told apart with any colour vision. A part has one colour in both columns.
COLOURS = {
    "building": "#E69F00",
    "planning": "#F0E442",
    "encoding": "#D55E00",
    "launching": "#CC79A7",
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "gradients": "#009E73",
    "update": "#000000",
    "waiting": "#BBBBBB",
    "other": "#777777",
    "between": "#EEEEEE",
}


def batch_of(line: Line) -> int:
    """The batch size of a case."""
    settings = dict(word.split("=") for word in line["case"].split() if "=" in word)
    return int(settings["batch"])


def rest_of(line: Line) -> str:
    """The other settings, with the machine."""
    case = " ".join(word for word in line["case"].split() if not word.startswith("batch="))
    return f"{case}\n{line['machine']['cpu']}, commit {(line['commit']['id'] or 'unknown')[:9]}"


def breakdown(axes: Any, lines: list[Line]) -> None:
    """Two bars per batch size: host left, kernel right."""
    from matplotlib.patches import Patch

    used: dict[str, None] = {}
    for place, line in enumerate(lines):
        for column, offset in (("host", -0.2), ("kernel", 0.2)):
            bottom = 0.0
            for part, value in line[column].items():
                axes.bar(place + offset, value, 0.38, bottom, color=COLOURS[part], edgecolor="white", linewidth=0.4)
                bottom += value
                used[part] = None
    axes.set_xticks(range(len(lines)), [str(batch_of(line)) for line in lines])
    axes.set_ylabel("microseconds per sentence")
    axes.set_title("Where a step's time goes: host (left bar) and kernel (right bar)\n" + rest_of(lines[0]), fontsize=9)
    handles = [Patch(color=COLOURS[part], label=part) for part in used]
    axes.legend(handles=handles, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))


def weight_bytes(axes: Any, lines: list[Line]) -> None:
    """A curve per program."""
    curves: dict[str, dict[int, float]] = {"vpps": {}, "each matrix once per launch": {}}
    for line in lines:
        batch = batch_of(line)
        curves["vpps"][batch] = line["value"]
        curves["each matrix once per launch"][batch] = line["once_per_launch"]
        curves.setdefault(line["peer"], {})[batch] = line["peer_value"]
    styles = ("o-", "k:", "s--", "x-.", "v--")
    for (name, curve), style in zip(curves.items(), styles, strict=False):
        axes.plot(list(curve), list(curve.values()), style, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sorted(curves["vpps"]), [str(batch) for batch in sorted(curves["vpps"])])
    axes.set_ylabel("MB of weights read")
    axes.set_title("Weight matrices read while training\n" + rest_of(lines[0]), fontsize=9)
    axes.legend(fontsize=8)


FIGURES: dict[str, Callable[[Any, list[Line]], None]] = {"breakdown": breakdown, "weight_bytes": weight_bytes}


def main() -> None:
    """Read, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", type=Path, metavar="FILE.jsonl")
    parser.add_argument("--out", type=Path, metavar="FILE.svg")
    options = parser.parse_args()
    try:
        import matplotlib
    except ImportError:
        sys.exit("figures need matplotlib: pip install -e '.[bench]'")
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "vpps"  # the same lines give the same file
    import matplotlib.pyplot as plt

    latest: dict[tuple[str, str | None], Line] = {}
    for text in options.lines.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        latest[line["case"], line.get("peer")] = line
    lines = sorted(latest.values(), key=batch_of)
    benches = {line["bench"] for line in lines}
    if len(benches) != 1 or not benches <= FIGURES.keys():
        sys.exit(f"{options.lines}: expected lines of one bench of {', '.join(FIGURES)}, found {sorted(benches)}")
    if len({rest_of(line) for line in lines}) > 1:
        sys.exit(f"{options.lines}: its lines have different settings, machines or commits; keep those of one run")
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    FIGURES[benches.pop()](axes, lines)
    axes.set_xlabel("batch size")
    out = options.out or options.lines.with_suffix(".svg")
    figure.savefig(out, metadata={"Date": None})
    print(out)


if __name__ == "__main__":
    main()
