"""Cost model of a training step on a GPU: ranks inefficiencies and predicts the effect of a change, without a GPU.

    python bench/gpu_cost --bench 1,16,64 [--trees FILE]    (batches of gpu_treelstm.py)
    python bench/gpu_cost --bench 1,16,64 --measured bench/results/h100/2026-11-26-kernel.jsonl
    python bench/gpu_cost [--models tree-lstm,bilstm-tagger,lattice-lstm] [--batch-sizes 1,16,64]
    python bench/gpu_cost --combs 1,2,8,64  (trees with this many inner nodes in every level: costs of a level) python
    bench/gpu_cost --combs 8,64 --precision bf16

The kernel is compiled for an H200, and the batch is planned for training. Then some of the launch's thread blocks are
executed, one machine instruction at a time (machine.py), so that executions are counted, not estimated. Their times
come from a model (timing.py). Its error was measured for each form of instruction (calibration.py), and figures are
corrected for it; "raw" figures are not. Between two barriers, the slowest executed block determines the time. Lines go
to standard output, and tables to standard error. With --measured (lines from gpu_timelines.py), one table compares the
model with measurements.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import harness
from datasets import trees_file

from gpu_cost.calibration import compare, measurements
from gpu_cost.cases import Case, bench_case, case_of, comb_case
from gpu_cost.executing import blocks_of, executed, slowest
from gpu_cost.reporting import report, say
from gpu_cost.timing import Constants
from vpps.ops.precision import EXACT

MODELS = ("tree-lstm", "bilstm-tagger", "lattice-lstm")


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = harness.parser(__doc__, batch_sizes=[1, 16, 64], trees=None)
    parser.add_argument("--models", default=",".join(MODELS), metavar="NAME,...")
    parser.add_argument("--combs", type=harness.numbers, metavar="N,...", help="only combs of 7 levels in batches of N")
    parser.add_argument(
        "--bench", type=harness.numbers, metavar="N,...", help="only the first batches of gpu_treelstm.py"
    )
    parser.add_argument("--measured", type=Path, metavar="FILE", help="only compare --bench with its launches")
    parser.add_argument("--precision", default=EXACT.name, metavar="NAME", help="precision of products with parameters")
    parser.add_argument("--groups", type=int, default=1, help="groups of thread blocks, each with a part of the batch")
    parser.add_argument("--blocks", type=harness.numbers, metavar="N,...", help="thread blocks to execute")
    parser.add_argument("--l2", type=int, help="latency of L2 in cycles")
    parser.add_argument("--top", type=int, default=12, help="rows of rankings")
    return parser.parse_args()


def main() -> None:
    """Run and report all selected cases."""
    options = parse_options()
    constants = Constants() if options.l2 is None else replace(Constants(), l2=options.l2)
    runs, launches = {}, {}
    with tempfile.TemporaryDirectory() as name:
        for case in _cases(options, Path(name)):
            blocks = [executed(case, block, constants) for block in blocks_of(case, options.blocks)]
            runs[case.examples], launches[case.examples] = blocks, slowest(blocks)
            if not options.measured:
                report(case, slowest(blocks), constants, options.top)
    if options.measured:
        say(compare(runs, launches, measurements(options.measured)))


def _cases(options: argparse.Namespace, folder: Path) -> Iterator[Case]:
    precision, asked = options.precision, {"groups": options.groups}
    if options.bench:
        trees = trees_file(options.trees)
        yield from (bench_case(batch, trees, folder, precision, **asked) for batch in options.bench)
        return
    if options.combs:
        yield from (comb_case(batch, folder, precision, **asked) for batch in options.combs)
        return
    for model in harness.choose(options.models, MODELS, "models"):
        yield from (case_of(model, batch, folder, precision, **asked) for batch in options.batch_sizes)
