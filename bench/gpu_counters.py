"""Reads hardware counters for the Tree-LSTM's training launches from Nsight Compute, which must be on the PATH.

    python bench/gpu_counters.py >> results/gpu/DATE-counters.jsonl

Prints a line per batch size and section of Nsight Compute (bytes and instructions issued, what warps wait for, ...).
`metrics` holds the medians over launches, by name, with their units. Clocks are not changed; each launch finds the
caches as the previous launch left them.
"""

from __future__ import annotations

import argparse
import shutil
import sys

import harness
from datasets import trees_file
from gpu_step import rows_of, under_ncu
from on_gpu import about

BENCH = "gpu_counters"
SECTIONS = (
    "SpeedOfLight", "InstructionStats", "WarpStateStats", "SchedulerStats", "MemoryWorkloadAnalysis", "LaunchStats",
    "Occupancy",
)  # fmt: skip
SKIPPED, COUNTED = 10, 3  # launches to skip, then to count; the program under ncu launches 2 * SKIPPED times


def count(batch_size: int, options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Return the values by section and metric, one per launch. Leaves out metrics that are not numbers."""
    sections = [word for section in SECTIONS for word in ("--section", section)]
    found: dict[str, dict[str, list[float]]] = {}
    output = under_ncu([*sections, "--page", "details"], "none", batch_size, SKIPPED, COUNTED, options)
    for row in rows_of(output):
        text = (row.get("Metric Value") or "").replace(",", "")
        if text.replace(".", "", 1).lstrip("-").isdigit():
            name = f"{row['Metric Name']} [{row['Metric Unit']}]" if row["Metric Unit"] else row["Metric Name"]
            found.setdefault(row["Section Name"], {}).setdefault(name, []).append(float(text))
    if not found:
        sys.exit(f"ncu measured nothing:\n{output}")
    return found


def main() -> None:
    """Count launches of every batch size."""
    parser = harness.parser(__doc__, trees=None, batch_sizes=[1, 64], hidden=256, embedding=256, vps=None)
    options = parser.parse_args()
    if shutil.which("ncu") is None:
        sys.exit("ncu is not on the PATH: there are no counters without Nsight Compute")
    options.trees = trees_file(options.trees)
    for size in options.batch_sizes:
        for section, metrics in count(size, options).items():
            medians = {name: harness.median(values) for name, values in metrics.items()}
            launches = min(map(len, metrics.values()))
            harness.report(
                BENCH, f"{section}, batch={size} hidden={options.hidden}", [float(launches)], "launches",
                metrics=medians, **about(["vpps"], "cuda", options.trees),
            )  # fmt: skip


if __name__ == "__main__":
    main()
