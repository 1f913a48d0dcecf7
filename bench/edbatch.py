"""Compares inference with ED-Batch's own figures (edbatch.json) from another machine; DyNet was measured on both.

    python bench/workloads.py --mode infer --hidden 128 --batch-sizes 64 --tasks ... > infer.jsonl     and 256
    python bench/edbatch.py infer.jsonl [--markdown]

Each line compares one run of vpps and DyNet (with its better strategy) here with ED-Batch and vanilla DyNet there, for
one workload, and gives each system's gain over DyNet on its machine. `value` is vpps's examples per second and
`edbatch` ED-Batch's figure, for a direct comparison. `scaled` is ED-Batch's figure times (DyNet here / DyNet there):
its speed here if both DyNet programs were the same. They are not: the one there is in C++, the one here in Python,
which builds graphs more slowly. So `scaled` is fair to small models only as far as DyNet's core dominates.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import harness
import workload_lines
from table import markdown, three_digits
from workload_lines import Case

FIGURES = json.loads(Path(__file__).with_name("edbatch.json").read_text(encoding="utf-8"))
TASKS = {
    "tagger": "bilstm-tagger",
    "NMT": "nmt",
    "Tree-LSTM": "tree-lstm",
    "Tree-GRU": "tree-gru",
    "MV-RNN": "mv-rnn",
    "Tree-LSTM, two types": "tree-lstm-2type",
    "lattice LSTM": "lattice-lstm",
    "lattice GRU": "lattice-gru",
}


def comparisons(cases: Iterable[Case]) -> Iterator[dict[str, Any]]:
    """Yield a line for each of ED-Batch's workloads and sizes that was measured here."""
    measured = {
        (case.task, case.hidden): case for case in cases if case.mode == "infer" and case.batch == FIGURES["batch"]
    }
    for hidden, workloads in FIGURES["hidden"].items():
        for workload, (vanilla, cavs, edbatch) in workloads.items():
            case = measured.get((TASKS[workload], int(hidden)))
            if case is None or not case.vpps:
                continue
            line = {
                "bench": "edbatch", "case": f"task={case.task} hidden={hidden} batch={case.batch}", "value": case.vpps,
                "unit": "examples/s", "edbatch": edbatch, "vanilla_there": vanilla, "cavs_there": cavs,
                "ratio": _rounded(case.vpps / edbatch), "gain_there": _rounded(edbatch / vanilla),
            }  # fmt: skip
            here = max((rate for name, (rate, _) in case.peers.items() if name.startswith("DyNet")), default=None)
            if here is not None:
                line |= {
                    "dynet_here": here, "gain_here": _rounded(case.vpps / here),
                    "scaled": _rounded(edbatch * here / vanilla),
                    "gain_ratio": _rounded(case.vpps / here * vanilla / edbatch),
                }  # fmt: skip
            yield line


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def table(lines: Iterable[dict[str, Any]]) -> str:
    """Return a table with a row per JSON line."""
    head = ["", "vpps", "ED-Batch there", "ratio", "DyNet here", "there", "gain here", "there"]
    columns = ("value", "edbatch", "ratio", "dynet_here", "vanilla_there", "gain_here", "gain_there")
    shown = [
        [line["case"].rpartition(" batch")[0], *(three_digits(line[c]) if c in line else "–" for c in columns)]
        for line in lines
    ]
    return markdown([head, *shown])


def main() -> None:
    """Print the lines or table."""
    parser = harness.parser(__doc__, "lines")
    parser.add_argument("--markdown", action="store_true", help="print a table instead of JSON lines")
    options = parser.parse_args()
    found = list(comparisons(workload_lines.cases_of(workload_lines.read(options.lines))))
    if not found:
        sys.exit(f"{options.lines}: no inference at batch size {FIGURES['batch']} and hidden sizes 128 or 256")
    if options.markdown:
        print(table(found))
    else:
        for line in found:
            print(json.dumps(line))


if __name__ == "__main__":
    main()
