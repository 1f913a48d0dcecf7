"""The roofline as a picture: operations per second over operations per byte, and time beside the floor."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vpps.errors import WorkloadError
from vpps.report.roofline.peaks import MIB, Peaks
from vpps.text import counted

if TYPE_CHECKING:
    from vpps.profiling.roofline import Point

SUFFIXES = (".svg", ".png", ".pdf")

# Colours that stay apart for colour-blind readers (Okabe & Ito 2008).
_PHASE_COLOURS = {"forward": "#0072B2", "backward": "#E69F00", "gradients": "#009E73", "update": "#CC79A7"}
_REST_COLOUR, _INK, _FAINT = "#BBBBBB", "#222222", "#8A8A8A"
_MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")
_HASH_SALT = "vpps"  # the same points give the same file


def check_plot(path: Path) -> None:
    """Raise WorkloadError unless a plot can be written there; before anything is measured."""
    if path.suffix.lower() not in SUFFIXES:
        raise WorkloadError(f"--plot {path}: expected a name that ends in {', '.join(SUFFIXES)}")
    if not os.path.isdir(path.absolute().parent):
        raise WorkloadError(f"--plot {path}: there is no folder {path.parent}; make it first")
    if importlib.util.find_spec("matplotlib") is None:
        raise WorkloadError(f"--plot {path}: plots need matplotlib; run pip install 'vpps[plot]'")


def draw(path: Path, points: Sequence[Point], peaks: Peaks) -> None:
    """Write the picture. Raises WorkloadError where that cannot be done."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style: Any = {"svg.hashsalt": _HASH_SALT, "font.size": 9, "axes.edgecolor": _FAINT, "axes.spines.top": False}
    with matplotlib.rc_context({**style, "axes.spines.right": False, "svg.fonttype": "none"}):
        figure = Figure(figsize=(11, 4.8), layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
        _roofs(left, points, peaks)
        _bars(right, points)
        names = ", ".join(dict.fromkeys(" ".join(filter(None, (p.workload, p.settings))) for p in points))
        estimated = f", {peaks.source}" if peaks.source != "measured" else ""
        title = f"{names} on {peaks.name}, {counted(peaks.n_vps, 'virtual processor')} ({peaks.isa}){estimated}"
        figure.suptitle(title, fontsize=10)
        try:
            metadata: dict[str, Any] = {"Date": None} if path.suffix.lower() == ".svg" else {}
            figure.savefig(path, metadata=metadata, dpi=150)
        except OSError as error:
            raise WorkloadError(f"--plot {path}: {error.strerror or error}") from error


def _roofs(axes: Any, points: Sequence[Point], peaks: Peaks) -> None:
    """The machine's roofs, and every phase under them."""
    intensities = [phase.intensity for p in points for phase in p.phases if phase.amount.flops]
    intensities += [p.intensity for p in points]
    roofs = _memory_roofs(points, peaks)
    low = min(*intensities, peaks.flops / roofs[-1][1]) / 4
    high = max(*intensities, peaks.flops / roofs[0][1]) * 4
    for k, (name, rate) in enumerate(roofs):
        ends = [low, peaks.flops / rate]
        axes.plot(ends, [x * rate / 1e9 for x in ends], color=_INK, lw=1, alpha=1 - 0.28 * k)
        x, y = low * 1.1, low * 1.2 * rate / 1e9
        axes.text(
            x, y, f"{name}, {_short(rate / 1e9)} GB/s", color=_INK, fontsize=7.5, rotation_mode="anchor",
            rotation=math.degrees(math.atan2(y, x)), transform_rotates_text=True,  # along the line
        )  # fmt: skip
    axes.plot([peaks.flops / roofs[-1][1], high], [peaks.flops / 1e9] * 2, color=_INK, lw=1.4)
    axes.annotate(
        f"fused multiply-adds, {_short(peaks.flops / 1e9)} GFLOP/s", (high, peaks.flops / 1e9), xytext=(-2, 4),
        textcoords="offset points", ha="right", fontsize=7.5, color=_INK,
    )  # fmt: skip
    for k, point in enumerate(points):
        marker = _MARKERS[k % len(_MARKERS)]
        for phase in point.phases:
            if not phase.amount.flops:
                continue
            colour = _PHASE_COLOURS[phase.name]
            reached = phase.amount.flops / (phase.seconds or phase.floor.seconds) / 1e9
            possible = phase.amount.flops / phase.floor.seconds / 1e9
            axes.plot([phase.intensity] * 2, [reached, possible], color=colour, lw=0.8, alpha=0.6, zorder=2)
            axes.plot(phase.intensity, possible, "_", color=colour, ms=7, alpha=0.8, zorder=2)
            fill = colour if phase.seconds else "white"
            axes.plot(phase.intensity, reached, marker, color=colour, mfc=fill, ms=6, zorder=3)
        whole = point.amount.flops / (point.seconds or point.floor.seconds) / 1e9
        axes.plot(point.intensity, whole, marker, color=_INK, mfc="white", mew=1.5, ms=8, zorder=4)
    axes.set(xscale="log", yscale="log", xlim=(low, high))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom / 3, top)  # room for the legend
    axes.set(xlabel="operations per byte that instructions ask for (FLOP/byte)", ylabel="GFLOP/s")
    axes.grid(True, which="major", lw=0.4, color="#E2E2E2")
    axes.set_axisbelow(True)
    _legend(axes, points)


def _memory_roofs(points: Sequence[Point], peaks: Peaks) -> list[tuple[str, float]]:
    """(name, bytes per second), farthest first: memory, what holds the largest launch, the nearest cache."""
    found = [("memory", max(peaks.read.farthest, peaks.triad.farthest))]
    resident = max(p.resident for p in points)
    middle = max(peaks.read.at(resident), peaks.triad.at(resident))
    near = max(peaks.read.nearest, peaks.triad.nearest)
    if middle > 1.3 * found[0][1]:
        found.append((f"{resident / MIB:.0f} MiB in use", middle))
    if near > 1.3 * found[-1][1]:
        found.append(("nearest cache", near))
    return found


def _legend(axes: Any, points: Sequence[Point]) -> None:
    from matplotlib.lines import Line2D

    measured = points[0].seconds is not None
    phases = [Line2D([], [], ls="", marker="o", color=c, label=name) for name, c in _PHASE_COLOURS.items()]
    phases.append(Line2D([], [], ls="", marker="_", color=_FAINT, label="its floor"))
    whole = "the launch" if measured else "the launch (floor)"
    phases.append(Line2D([], [], ls="", marker="o", mfc="white", mew=1.5, color=_INK, label=whole))
    sizes = [
        Line2D([], [], ls="", marker=_MARKERS[k % len(_MARKERS)], color=_FAINT, label=_label(point, points))
        for k, point in enumerate(points)
    ]
    first = axes.legend(handles=phases, loc="lower right", fontsize=7.5, frameon=False)
    if len(points) > 1:
        axes.add_artist(first)
        axes.legend(handles=sizes, loc="lower center", fontsize=7.5, frameon=False)


def _label(point: Point, points: Sequence[Point]) -> str:
    several = len({p.workload for p in points}) > 1
    return f"{point.workload} " * several + f"batch size {point.batch_size}"


def _bars(axes: Any, points: Sequence[Point]) -> None:
    """For each batch size the floor and what was measured, part by part; the floor is 1."""
    ticks, labels = [], []
    widest = 1.0
    for k, point in enumerate(points):
        floor = point.floor.seconds
        times = [*(phase.floor.seconds for phase in point.phases), point.floor.barriers + point.floor.launch]
        bars = [(f"{_label(point, points)}: floor", times, _time(floor))]
        if point.seconds is not None:
            times = [*(phase.seconds or 0.0 for phase in point.phases), point.waiting or 0.0]
            bars.append(("measured", times, f"{_time(point.seconds)}, {point.ratio:.2f} x"))
        for row, (label, times, text) in enumerate(bars):
            y, end = -(k * 2.6 + row), 0.0
            for seconds, colour in zip(times, (*_PHASE_COLOURS.values(), _REST_COLOUR), strict=True):
                axes.barh(y, seconds / floor, 0.85, left=end, color=colour, edgecolor="white", lw=0.6)
                end += seconds / floor
            axes.annotate(text, (end, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=7.5)
            ticks.append(y)
            labels.append(label)
            widest = max(widest, end)
    axes.axvline(1, color=_FAINT, lw=0.8, ls=":")
    axes.set_yticks(ticks, labels)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set(xlabel="time of a launch over its floor", xlim=(0, widest * 1.3))
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=name) for name, colour in _PHASE_COLOURS.items()]
    handles.append(Patch(color=_REST_COLOUR, label="barriers, launch, waiting"))
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.4, 1.1), ncols=5, fontsize=7.5, frameon=False,
                columnspacing=1.0, handlelength=1.0)  # fmt: skip


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"
