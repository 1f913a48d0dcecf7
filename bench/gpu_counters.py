"""The hardware's counters of training launches of the Tree-LSTM, from Nsight Compute, which must be on the PATH.

    python bench/gpu_counters.py >> results/gpu/DATE-counters.jsonl

A line per batch size and section of Nsight Compute (bytes and instructions issued, what warps wait for, ...); `metrics`
holds the medians over launches, by name, with their units. Clocks stay as they are; caches are as the launch before has
left them.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import shutil
import subprocess
import sys
from pathlib import Path

import harness
from datasets import name_of, trees_file
from on_gpu import describe

BENCH = "gpu_counters"
SECTIONS = (
    "SpeedOfLight", "InstructionStats", "WarpStateStats", "SchedulerStats", "MemoryWorkloadAnalysis", "LaunchStats",
    "Occupancy",
)  # fmt: skip
SKIPPED, COUNTED = 10, 3  # launches, of twice as many as are skipped


def count(batch_size: int, options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Values by section and metric, one per launch. Exits with what ncu says where it fails."""
    sections = [word for section in SECTIONS for word in ("--section", section)]
    command = [
        "ncu", *sections, "--cache-control", "none", "--clock-control", "none", "--kernel-name", "vpps_kernel",
        "--launch-skip", str(SKIPPED), "--launch-count", str(COUNTED), "--csv", "--page", "details", "--print-units",
        "base",
    ]  # fmt: skip
    child = [
        sys.executable, str(Path(__file__).with_name("gpu_step.py")), "--steps-only", "--trees", str(options.trees),
        "--batch-sizes", str(batch_size), "--hidden", str(options.hidden), "--embedding", str(options.embedding),
        "--limit", str(SKIPPED * batch_size), "--profiled", str(SKIPPED),
    ]  # fmt: skip
    child += ["--vps", str(options.vps)] if options.vps else []
    run = subprocess.run([*command, *child], capture_output=True, text=True, check=False)
    found = read(run.stdout)
    if run.returncode or not found:
        sys.exit(f"ncu failed with status {run.returncode}:\n{run.stdout}\n{run.stderr}")
    return found


def read(output: str) -> dict[str, dict[str, list[float]]]:
    """What ncu prints with --csv --page details. Metrics that are no numbers are left out."""
    lines = output.splitlines()
    header = next((k for k, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    found: dict[str, dict[str, list[float]]] = {}
    for row in csv.DictReader(lines[header:]):
        text = (row.get("Metric Value") or "").replace(",", "")
        if text.replace(".", "", 1).lstrip("-").isdigit():
            name = f"{row['Metric Name']} [{row['Metric Unit']}]" if row["Metric Unit"] else row["Metric Name"]
            found.setdefault(row["Section Name"], {}).setdefault(name, []).append(float(text))
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
                metrics=medians, data=name_of(options.trees), gpu=describe(["vpps"], "cuda"),
                date=datetime.date.today().isoformat(),
            )  # fmt: skip


if __name__ == "__main__":
    main()
