"""Compares learning in vpps and PyTorch: equal models, data, seeds and epochs; scores on held-out data.

    python bench/learning.py [--tasks tree-lstm,...] [--seeds 1,2,3] [--epochs N] >> bench/results/cpu/learning.jsonl
    python bench/learning.py --precision bf16 >> bench/results/cpu/learning-bf16.jsonl
    python bench/learning.py --table bench/results/cpu/learning.jsonl

vpps trains through the task and the handle as `vpps-train` does. The peer is the program of `peers/torch_zoo`, batched
manually, with the same initial weights, mini-batches, update rule and learning rate. The task's own scores judge both.
Each task has a line per seed, then one for all. `value` and `peer_value` are means over the seeds of the first score
after the last epoch; `spread` and `peer_spread` are their standard deviations. `noise` is the largest difference of the
two means that chance explains (95 %, Student's t with the pooled deviation).

The losses of the first ten steps, each after the updates before it, must agree to 1e-4: so both programs compute the
same, and later differences come only from rounding. `baseline` is the best score of a constant answer for all examples:
one class, or the class frequencies in the training data. A model that is no better has learned nothing. The program
exits with status 1 if the first losses differ, if nothing was learned, or if vpps is worse than the peer by more than
noise.

With `--precision bf16`, the peer is vpps in float32, to show the effect of rounding on learning. Then the losses of the
first 200 steps must agree to a hundredth of their mean, on average.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import harness
import numpy as np

BENCH = "learning"
ROOT = Path(__file__).resolve().parent.parent
FIRST_STEPS, TOLERANCE = 10, 1e-4  # steps, and the largest relative difference of their losses
ROUNDED_STEPS, ROUNDED_TOLERANCE = 200, 1e-2  # if products round; relative to the mean of all these losses
STUDENT_95 = {2: 4.30, 4: 2.78, 6: 2.45, 8: 2.31, 10: 2.23}  # by degrees of freedom
EVALUATION_BATCH = 64


@dataclass(frozen=True)
class Setup:
    """A task's training settings: smaller than its defaults, with enough training to get well above the baseline.

    Attributes:
        data: folder of its real data, inside the folder of data sets; None: its data is synthetic.
        epochs: number of passes over the data.
        limit: number of examples used.
        settings: sizes and variants.
        labels: column of the classes that it predicts.
    """

    data: str | None
    epochs: int
    limit: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    labels: str = "label"


SMALL = {"hidden": 64, "embedding": 64}
TREES = Setup("sst", epochs=4, limit=4000, settings=SMALL)
TAGGER = Setup("wikiner", epochs=6, settings=SMALL, labels="tag")
TEXT = Setup("ptb", epochs=3, settings=SMALL, labels="next")
LATTICES = Setup("weibo", epochs=4, settings=SMALL, labels="tag")

SETUPS = {
    "tree-lstm": TREES,
    "tree-lstm-child-sum": TREES,
    "tree-lstm-2type": TREES,
    "tree-gru": TREES,
    "rvnn": Setup("sst", epochs=3, settings={**SMALL, "mlp": 64}),  # only sentences have labels, so all are needed
    "mv-rnn": Setup("sst", epochs=4, limit=2000, settings={"hidden": 16}),
    "td-rnn": Setup("sst", epochs=5, settings={"hidden": 64, "mlp": 64}),
    "td-lstm": Setup("sst", epochs=3, settings=SMALL | {"mlp": 64}),
    "tree-fc": Setup(None, epochs=3, settings={"hidden": 64}),
    "bilstm-tagger": TAGGER,
    "bilstm-char-tagger": TAGGER,
    "fixed-lstm": TEXT,
    "var-lstm": TEXT,
    "nmt": Setup("iwslt15", epochs=5, settings=SMALL | {"attention": True}, labels="next"),
    "lattice-lstm": LATTICES,
    "lattice-gru": LATTICES,
}


def make_task(name: str, seed: int, options: argparse.Namespace) -> Any:
    """Return the task on its real data."""
    from vpps.zoo.tasks import TASKS

    setup, kind = SETUPS[name], TASKS[name]
    settings = setup.settings | {"seed": seed, "limit": options.limit or setup.limit}
    if setup.data is not None:
        settings["data"] = options.data / setup.data
    if options.hidden is not None:
        sizes = {"hidden", "embedding"} & {field.name for field in fields(kind.settings_type)}
        settings |= dict.fromkeys(sizes, options.hidden)
    return kind(kind.settings_type(**settings))


class Vpps:
    """Trains as `vpps-train` does."""

    def __init__(self, task: Any, lr: float, threads: int, precision: str = "float32") -> None:
        import vpps

        self.vpps, self.task = vpps, task
        clip_norm = task.training.get("clip_norm")
        self.handle = vpps.Handle(task.model, vpps.Adam(lr=lr), vps=threads, clip_norm=clip_norm, precision=precision)

    def train(self, batches: Iterable[Any]) -> list[float]:
        """Return the loss of every step, before its update."""
        stale = []
        for batch in batches:
            graph = self.vpps.Graph()
            stale.append(self.handle.fb(graph, self.task.loss(graph, batch) * (1 / len(batch))))
        return [*stale[1:], self.handle.sync_get_latest_loss()]

    def scores(self) -> dict[str, float]:
        found: dict[str, float] = self.task.evaluate(self.handle)
        return found

    def close(self) -> None:
        self.handle.close()


class Torch:
    """The program of `peers/torch_zoo`."""

    def __init__(self, task: Any, lr: float, threads: int) -> None:
        import torch
        from peers.torch_zoo import PROGRAMS

        torch.set_num_threads(threads)
        self.task = task
        self.program = PROGRAMS[task.name](task)
        self.program.train_with("adam", lr, task.training.get("clip_norm"))

    def train(self, batches: Iterable[Any]) -> list[float]:
        """Return the loss of every step, before its update."""
        losses = []
        for batch in batches:
            self.program.step(batch)
            losses.append(self.program.last_loss())
        return losses

    def scores(self) -> dict[str, float]:
        batches = self.task.dev.batches(EVALUATION_BATCH, shuffle=False)
        found: dict[str, float] = self.task.scores((batch, self.program.infer(batch).numpy()) for batch in batches)
        return found


def baseline(task: Any, labels: str) -> float:
    """Return a constant answer's best first score: the class frequencies, or a single class."""

    def labels_of(batches: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
        found = [batch[labels] for batch in batches]
        if targets := getattr(task.network, "target_vertices", None):  # the words of a translation
            found = [some[targets(batch)] for some, batch in zip(found, batches, strict=True)]
        return [some[some >= 0] for some in found]  # -1 marks vertices without a label

    dev = list(task.dev.batches(EVALUATION_BATCH, shuffle=False))
    expected = labels_of(dev)
    counts = np.bincount(np.concatenate(labels_of(list(task.train.batches(EVALUATION_BATCH)))))
    n_classes = max(len(counts), 1 + max(int(some.max()) for some in expected))
    counts = np.pad(counts, (0, n_classes - len(counts))) + 1  # add one each, so that no class is impossible
    answers = [np.log(counts / counts.sum()).astype(np.float32)]
    if not task.lower_is_better:
        answers += list(np.eye(n_classes, dtype=np.float32))
    scores = []
    for row in answers:
        # If the score is a perplexity, the outputs are losses.
        outputs = (-row[some] if task.lower_is_better else np.tile(row, (len(some), 1)) for some in expected)
        scores.append(next(iter(task.scores(zip(dev, outputs, strict=True)).values())))
    return min(scores) if task.lower_is_better else max(scores)


@dataclass
class Run:
    """The result for one seed.

    Attributes:
        baseline: the first score's baseline.
        scores, peer_scores: the first score after every epoch.
        last, peer_last: all scores after the last epoch.
        first_difference: the largest relative difference between losses in the first steps; if products round, the mean
            difference relative to the mean loss.
        losses, peer_losses: mean loss per unit in each epoch.
        tolerance: largest allowed `first_difference`.
    """

    task: str
    seed: int
    lower_is_better: bool
    baseline: float
    first_difference: float = 0.0
    scores: list[float] = field(default_factory=list)
    peer_scores: list[float] = field(default_factory=list)
    last: dict[str, float] = field(default_factory=dict)
    peer_last: dict[str, float] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    peer_losses: list[float] = field(default_factory=list)
    tolerance: float = TOLERANCE

    @property
    def score(self) -> str:
        """Return the name of the first score."""
        return next(iter(self.last))


def compare(name: str, seed: int, options: argparse.Namespace) -> tuple[Run, dict[str, Any]]:
    """Train both programs with one seed; also returns the line's entries about sizes."""
    from vpps.cli.options import LEARNING_RATES

    setup = SETUPS[name]
    task = make_task(name, seed, options)
    lr = task.training.get("lr") or LEARNING_RATES["adam"]
    size, epochs = task.training.get("batch_size", 16), options.epochs or setup.epochs
    rounds = options.precision != "float32"
    if rounds:
        peer: Vpps | Torch = Vpps(make_task(name, seed, options), lr, options.threads)
    else:
        peer = Torch(task, lr, options.threads)  # comes first: it copies the initial weights
    ours = Vpps(task, lr, options.threads, options.precision)
    run = Run(name, seed, task.lower_is_better, baseline(task, setup.labels))
    run.tolerance = ROUNDED_TOLERANCE if rounds else TOLERANCE
    first: list[tuple[float, float]] = []
    for epoch in range(epochs):
        start = time.perf_counter()
        batches = list(task.train.batches(size, seed=seed, epoch=epoch))
        losses, peer_losses = ours.train(batches), peer.train(batches)
        first += zip(losses, peer_losses, strict=True)
        units = sum(map(task.units, batches))
        run.losses.append(_mean_loss(losses, batches, units))
        run.peer_losses.append(_mean_loss(peer_losses, batches, units))
        run.last, run.peer_last = ours.scores(), peer.scores()
        run.scores.append(run.last[run.score])
        run.peer_scores.append(run.peer_last[run.score])
        print(
            f"{name} seed {seed} epoch {epoch + 1}/{epochs}: {run.score} {run.scores[-1]:.4g}, {peer_of(options)} "
            f"{run.peer_scores[-1]:.4g}, baseline {run.baseline:.4g}; {time.perf_counter() - start:.1f} s",
            file=sys.stderr,
        )
    ours.close()
    if rounds:
        ours_first, theirs = np.transpose(first[:ROUNDED_STEPS])
        run.first_difference = float(np.mean(np.abs(ours_first - theirs)) / np.mean(theirs))
    else:
        run.first_difference = max(abs(a - b) / abs(b) for a, b in first[:FIRST_STEPS])
    settings = {k: v for k, v in vars(task.settings).items() if k not in ("data", "seed", "limit")}
    sizes = {"examples": len(task.train), "dev": len(task.dev), "epochs": epochs, "batch_size": size, "lr": lr}
    return run, {"data": Path(setup.data).name if setup.data else "made", **sizes, "settings": settings}


def peer_of(options: argparse.Namespace) -> str:
    """Return the name of the peer."""
    return "torch" if options.precision == "float32" else "float32"


def _mean_loss(losses: Sequence[float], batches: Sequence[Any], units: int) -> float:
    """Return the loss per unit, from mini-batches' means over examples."""
    return sum(loss * len(batch) for loss, batch in zip(losses, batches, strict=True)) / units


def noise_of(values: Sequence[float], others: Sequence[float]) -> float:
    """Return the largest difference by chance of two equal samples' means (95 %); nan for samples of size one."""
    n = len(values)
    if n < 2:
        return float("nan")
    pooled = (statistics.variance(values) + statistics.variance(others)) / 2
    return STUDENT_95.get(2 * n - 2, 2.1) * float(np.sqrt(2 * pooled / n))


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """Return a task's line, from all its seeds."""
    values, others = [run.scores[-1] for run in runs], [run.peer_scores[-1] for run in runs]
    sign = -1 if runs[0].lower_is_better else 1
    value, other, noise = statistics.mean(values), statistics.mean(others), noise_of(values, others)
    lead = sign * (value - other)
    learned = all(sign * (score - run.baseline) > 0 for run, score in zip(runs, values, strict=True))
    first = max(run.first_difference for run in runs)
    if not first <= runs[0].tolerance:
        verdict = "the first losses differ"
    elif not learned:
        verdict = "not learned"
    elif len(runs) < 2:
        verdict = "one seed tells nothing"
    else:
        verdict = "equal" if abs(lead) <= noise else "better" if lead > 0 else "worse"
    return {
        "value": value, "peer_value": other, "spread": _spread(values), "peer_spread": _spread(others),
        "difference": value - other, "noise": noise, "first_loss_difference": first,
        "baseline": statistics.mean(run.baseline for run in runs), "verdict": verdict,
    }  # fmt: skip


def _spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else float("nan")


def emit(
    case: str, run: Run, seeds: Sequence[int], sizes: dict[str, Any], found: dict[str, Any], options: argparse.Namespace
) -> None:
    """Print one result line."""
    line = {"bench": BENCH, "case": case, "task": run.task, "seeds": list(seeds), "unit": run.score}
    line |= {"precision": options.precision, "peer": peer_of(options)}
    line |= {"lower_is_better": run.lower_is_better, **_rounded(found), **sizes}
    line |= {"machine": harness.machine(), "versions": harness.versions(), "commit": harness.commit()}
    print(json.dumps(line), flush=True)


def _rounded(value: Any) -> Any:
    """Round every number to four digits; null for a missing one."""
    if isinstance(value, dict):
        return {key: _rounded(x) for key, x in value.items()}
    if isinstance(value, list):
        return [_rounded(x) for x in value]
    if isinstance(value, float):
        return float(f"{value:.4g}") if np.isfinite(value) else None
    return value


def measure(name: str, options: argparse.Namespace) -> bool:
    """Measure all seeds of a task; returns True if vpps learns as well as the peer."""
    runs = []
    for seed in options.seeds:
        run, sizes = compare(name, seed, options)
        runs.append(run)
        found = {
            "value": run.scores[-1], "peer_value": run.peer_scores[-1], "baseline": run.baseline,
            "first_loss_difference": run.first_difference, "epoch_scores": run.scores,
            "peer_epoch_scores": run.peer_scores, "losses": run.losses, "peer_losses": run.peer_losses,
            "scores": run.last, "peer_scores": run.peer_last,
        }  # fmt: skip
        emit(f"{name} seed={seed}", run, [seed], sizes, found, options)
    found = summary(runs)
    emit(name, runs[0], options.seeds, sizes, found, options)
    print(f"{name}: {found['verdict']}", file=sys.stderr)
    return found["verdict"] in ("equal", "better")


def table(paths: Sequence[Path]) -> Iterator[str]:
    """Yield lines of a Markdown table, from the lines of this program."""
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    peers = " or ".join(sorted({line["peer"].replace("torch", "PyTorch") for line in lines if line["bench"] == BENCH}))
    yield f"| task | data, epochs | score | constant answer | vpps | {peers} | difference | noise | verdict |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for line in lines:
        if line["bench"] != BENCH or "verdict" not in line:
            continue
        ours, peer = (
            f"{_text(line[k])} ± {_text(line[s])}" for k, s in (("value", "spread"), ("peer_value", "peer_spread"))
        )
        data = f"{Path(line['data']).name}, {line['examples']} x {line['epochs']}"
        better = " (lower is better)" if line["lower_is_better"] else ""
        yield (
            f"| {line['task']} | {data} | {line['unit']}{better} | {_text(line['baseline'])} | {ours} | {peer} | "
            f"{_text(line['difference'], '+')} | {_text(line['noise'])} | {line['verdict']} |"
        )


def _text(value: float | None, sign: str = "") -> str:
    if value is None:
        return "-"
    digits = 1 if abs(value) >= 10 else 3
    return f"{value:{sign}.{digits}f}"


def main() -> None:
    """Train, or print the table of earlier results."""
    parser = harness.parser(__doc__, data=None, limit=None, hidden=None, threads=1, mkl_avx512=False)
    parser.add_argument("--tasks", help=f"separated by commas, of {', '.join(SETUPS)}")
    parser.add_argument("--seeds", type=harness.numbers, default=[1, 2, 3])
    parser.add_argument("--precision", default="float32", help="precision of products, except the peer's")
    parser.add_argument("--epochs", type=int, help="epochs (default: the task's own number)")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="print a table of these lines instead")
    options = parser.parse_args()
    if options.table:
        print("\n".join(table(options.table)))
        return
    names = options.tasks.split(",") if options.tasks else list(SETUPS)
    if unknown := set(names) - set(SETUPS):
        sys.exit(f"{BENCH}: unknown tasks: {', '.join(sorted(unknown))}; there are {', '.join(SETUPS)}")
    if options.mkl_avx512:
        harness.mkl_avx512()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if options.data is None:
        options.data = Path(os.environ.get("VPPS_DATA", ROOT.parent / "shared" / "data"))
    if not options.data.is_dir():
        sys.exit(f"{BENCH}: there is no folder {options.data}: name the one of the data sets with --data")
    learned = [measure(name, options) for name in names]
    sys.exit(not all(learned))


if __name__ == "__main__":
    main()
