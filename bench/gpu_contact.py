"""The first checks on a GPU new to vpps. Each result is printed at once, on its own line.

    python bench/gpu_contact.py versions      device, driver, versions, as the driver and the loaded NVRTC report them
    python bench/gpu_contact.py smallest      a kernel of a few instructions: compiled, loaded, launched
    python bench/gpu_contact.py tree-lstm     a Tree-LSTM as users run it, cells fused, weights on the chip: loss,
                                              gradients and update against the float64 reference, which rounds
                                              as --precision says, and the exact one; then a step's time

Exit status: 1 if a result is wrong, 3 if there is no GPU that vpps can use.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import subprocess
import sys
import time
from typing import Any

import harness
import numpy as np
from datasets import name_of, trees_file
from models import VppsTreeLstm
from numpy.typing import NDArray
from on_gpu import describe
from treelstm import LEARNING_RATE, initial_weights
from trees import read_trees

import vpps
from vpps.errors import HandleError
from vpps.model.precisions import ALL_EXACT, Precisions
from vpps.ops.precision import PRECISIONS, Precision
from vpps.reference import Reference, weights_of
from vpps.runtime.driver import usable_gpu

BENCH = "gpu_contact"
NO_GPU = 3  # exit status
FORWARD, GRADIENT = 1e-5, 1e-4  # largest relative errors, by norms, as in the tests
FLOAT32_ERROR = 3e-7  # for a sum of some hundred products, relative to a vector's largest element
STEPS = 50
PACKAGES = (
    "vpps", "numpy", "cupy-cuda13x", "cupy-cuda12x", "cuda-bindings", "cuda-pathfinder", "nvidia-cuda-nvrtc",
    "nvidia-cuda-nvrtc-cu12", "nvidia-nccl-cu13", "nvidia-nccl-cu12",
    "torch", "pytest", "pytest-xdist", "pytest-timeout", "hypothesis",
)  # fmt: skip
SMI = "driver_version,memory.total,clocks.max.sm,clocks.max.mem,power.limit,mig.mode.current,compute_mode"


def versions(options: argparse.Namespace) -> None:
    """Print the versions that all figures depend on. Exits with NO_GPU if there is no GPU."""
    try:
        device = usable_gpu()
    except HandleError as error:
        print(f"no GPU to check: {error}", file=sys.stderr)
        sys.exit(NO_GPU)
    line = {
        "bench": BENCH, "case": "versions", "gpu": device._asdict(),
        "nvidia_smi": smi(), "packages": installed(), "machine": harness.machine(), "versions": harness.versions(),
        "commit": harness.commit(), "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    print(json.dumps(line), flush=True)


def smi() -> dict[str, str]:
    """Return nvidia-smi's data on the first GPU; empty without that tool."""
    try:
        command = ["nvidia-smi", f"--query-gpu={SMI}", "--format=csv,noheader", "--id=0"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(SMI.split(","), (value.strip() for value in done.stdout.split(",")), strict=False))


def installed() -> dict[str, str]:
    """Return package versions from their metadata: the installed versions, not the loaded ones."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def report(case: str, values: list[float], unit: str, handle: vpps.Handle, **extra: object) -> None:
    """Print a line, with the compiler's figures for the kernel."""
    machine = handle._engine.machine
    resources = None if machine.resources is None else dataclasses.asdict(machine.resources)
    harness.report(
        BENCH, case, values, unit, **extra, vps=machine.vps, kernel=resources, gpu=describe(["vpps"], machine.target),
        date=datetime.date.today().isoformat(),
    )  # fmt: skip


def smallest(options: argparse.Namespace) -> None:
    """Check a model with a single vector."""
    model = vpps.Model(seed=1)
    b = model.parameter("b", (8,), init="normal")
    begun = time.perf_counter()
    with vpps.Handle(model, target=options.device, vps=options.vps) as handle:
        graph = vpps.Graph()
        loss = vpps.cross_entropy(graph.zeros(8) + b, 3)
        found = float(handle.forward(graph, [loss])[0])
        seconds = time.perf_counter() - begun
        expected = float(Reference(graph, weights_of(model)).value(loss))
        report("smallest kernel, until its first result", [seconds], "s", handle, loss=found, expected=expected)
        require({"loss": abs(found - expected) / abs(expected)}, {"loss": FORWARD})
        times = harness.timed(lambda: handle.forward(graph, [loss]), options.steps)
        report("smallest kernel, planned, launched and awaited", [1e6 * s for s in times], "us", handle)


def tree_lstm(options: argparse.Namespace) -> None:
    """Check gradients and then an update on two trees against the reference; then time steps with one tree."""
    trees, words = read_trees(trees_file(options.trees), 16)
    trees.sort(key=lambda tree: len(tree.labels))
    weights = initial_weights(words, options.embedding, options.hidden)
    lr = LEARNING_RATE["sgd"]
    net = VppsTreeLstm(weights, "sgd", lr, options.vps, target=options.device, precision=options.precision)
    handle, model = net.handle, net.handle.model
    case = f"hidden={options.hidden} embedding={options.embedding} precision={options.precision}"
    batch = [net.prepare(tree) for tree in (trees[0], trees[len(trees) // 2])]
    graph, loss = net.graph(batch)
    before = weights_of(model)
    precisions = Precisions.given(options.precision)
    references = [Reference(graph, before, precisions=precisions), Reference(graph, before, precisions=ALL_EXACT)]
    references.append(Disturbed(graph, before, precisions=precisions))
    (expected, gradients), exact, (_, disturbed) = ((float(r.value(loss)), r.backward(loss)) for r in references)
    most = {name: GRADIENT + 2 * relative_error(disturbed[name], g) for name, g in gradients.items()}

    begun = time.perf_counter()
    value, found = handle.gradients(graph, loss)
    seconds = time.perf_counter() - begun
    errors, from_exact = (
        {"loss": abs(value - e) / abs(e)} | {name: relative_error(g, of[name]) for name, g in found.items()}
        for e, of in ((expected, gradients), exact)
    )
    report(f"gradients, {case}", [seconds], "s", handle, loss=value, expected=expected, errors=rounded(errors),
           from_exact=rounded(from_exact))  # fmt: skip
    require(errors, {"loss": FORWARD, **most})

    begun = time.perf_counter()
    handle.fb(graph, loss)
    value = handle.sync_get_latest_loss()
    seconds = time.perf_counter() - begun
    errors = {"loss": abs(value - expected) / abs(expected)}
    errors |= {p.name: relative_error(p.numpy(), before[p.name] - lr * gradients[p.name]) for p in model}
    report(f"update, {case}", [seconds], "s", handle, loss=value, expected=expected, errors=rounded(errors))
    require(errors, dict.fromkeys(errors, FORWARD))

    one = [net.prepare(trees[len(trees) // 2])]
    times = []
    for _ in range(options.rounds):
        begun = time.perf_counter()
        for _ in range(options.steps):
            net.step(one)
        net.loss()
        times.append(1e6 * (time.perf_counter() - begun) / options.steps)
    report(f"training step, batch=1 {case}", times, "us/step", handle, leaves=(len(one[0]) + 1) // 2,
           data=name_of(trees_file(options.trees)))  # fmt: skip
    net.close()


class Disturbed(Reference):
    """A reference whose vectors carry float32's errors when a product rounds them.

    A value next to a rounding boundary can be rounded either way. In bf16, the two results differ by 2^-8 of the value,
    so a deep network cannot agree with the reference to 1e-4. This class measures how far apart correct results can be.
    """

    def _rounded(self, precision: Precision, x: NDArray[Any]) -> NDArray[Any]:
        noise = np.random.default_rng(x.size).standard_normal(x.shape)
        return super()._rounded(precision, x + FLOAT32_ERROR * np.abs(x).max(initial=0) * noise)


def relative_error(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """Return the norm of the difference, divided by the norm of `expected`."""
    scale = float(np.linalg.norm(expected))
    return float(np.linalg.norm(found.astype(np.float64) - expected)) / (scale or 1.0)


def rounded(errors: dict[str, float]) -> dict[str, float]:
    """Round errors for printing."""
    return {name: float(f"{error:.3g}") for name, error in errors.items()}


def require(errors: dict[str, float], most: dict[str, float]) -> None:
    """Exit if a result is wrong or NaN."""
    wrong = {
        name: f"{error:.3g}, at most {most[name]:.3g}" for name, error in errors.items() if not error <= most[name]
    }
    if wrong:
        sys.exit(f"relative errors: {wrong}")


def main() -> None:
    """Run the requested check."""
    questions = {"versions": versions, "smallest": smallest, "tree-lstm": tree_lstm}
    parser = harness.parser(__doc__, trees=None, device="cuda", hidden=256, embedding=256, vps=None, rounds=5)
    parser.add_argument("question", choices=questions)
    parser.add_argument("--precision", default="float32", choices=PRECISIONS, help="precision of tree-lstm's products")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps per timing")
    options = parser.parse_args()
    questions[options.question](options)


if __name__ == "__main__":
    main()
