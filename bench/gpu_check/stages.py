"""The steps to run, ordered by information per second."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

BENCH = Path(__file__).resolve().parents[1]
ROOT = BENCH.parent
PLUGIN = "bench.gpu_check.tests_plugin"

STAGES = {
    "contact": "device, driver, versions; the smallest kernel; a fused Tree-LSTM's loss, gradients and update against "
    "the float64 reference. Basic function and correctness, under 30 s",
    "products": "micro programs: products beside the frozen routine, on tensor cores too, gradients by tiles beside "
    "cuBLAS, ways to synchronize blocks, levels of a recurrence. Guides kernel design, under a minute",
    "timelines": "time of equal launches by instruction, at batch 1, 16, 64, 128",
    "peers": "Tree-LSTM at batch 1, 64, 16, 128 beside PyTorch (by level, with and without CUDA graphs), chain LSTM "
    "beside cuDNN, seconds at steady state: speed, and times of host and GPU",
    "precisions": "fused Tree-LSTM in bf16, tf32 and 3xtf32, and its error to the exact reference; Tree-LSTM at batch "
    "1, 64, 16, 128 in every precision, and in bf16 beside PyTorch: correctness, errors and speed",
    "tests": "tests/gpu, file by file",
    "sanitizer": "compute-sanitizer's memcheck, racecheck and synccheck of a small case, every buffer an "
    "allocation of its own",
    "endurance": "10,000 launches, two handles at once, launches that are stopped",
    "long": "the hardware's counters, all programs and benches at full size",
}
# The most informative tests come first, unnamed files last.
FIRST = ("test_tree_lstm", "test_torch", "test_training", "test_machine", "test_slots", "test_ops")
ALONE = ("test_machine", "test_training")  # they need exclusive use of the GPU
# pytest's -k for tests that take seconds on a simulated GPU.
DRY_RUN = {
    "test_machine": "test_memory_is_shared",
    "test_training": "test_training_follows_the_reference or test_a_stopped_launch",
    "test_tree_lstm": "test_gradients_updates_and_inference and [64]",
}
TEST_SECONDS, WORKERS = 150, 16  # limit of one test; processes that compile at the same time
BATCH_SIZES = (1, 64, 16, 128)
EXACT, PRECISIONS = ("--precision", "float32"), ("bf16", "tf32", "3xtf32")
SMALLEST = ("--hidden", "8", "--embedding", "8", "--vps", "2")
ONE_ROUND = ("--limit", "4", "--passes", "1", "--seconds", "0")


@dataclass(frozen=True)
class Step:
    """A program to run.

    Attributes:
        name: unique name.
        seconds: expected duration; the step does not start if less time is left.
        most: seconds after which it is stopped.
        environment: variables added to those that all steps have.
        needs: a program that must be on the PATH.
    """

    stage: str
    name: str
    command: tuple[str, ...]
    seconds: float
    most: float
    environment: Mapping[str, str] = field(default_factory=dict)
    needs: str = ""


def steps(smallest: bool, cores: int) -> list[Step]:
    """Return all steps in order. smallest: use sizes that take a simulated GPU seconds."""
    return [
        *_contact(smallest), *_products(smallest), *_timelines(smallest), *_peers(smallest), *_precisions(smallest),
        *_tests(smallest, cores), *_sanitizer(smallest), *_endurance(smallest), *_long(smallest),
    ]  # fmt: skip


def _program(path: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, str(BENCH / path), *arguments)


def _contact(smallest: bool) -> Iterator[Step]:
    size = SMALLEST if smallest else ()
    few = ("--steps", "2", "--rounds", "1") if smallest else ()
    yield Step("contact", "versions", _program("gpu_contact.py", "versions"), 2, 60)
    yield Step("contact", "smallest kernel", _program("gpu_contact.py", "smallest", *size, *few), 3, 90)
    yield Step("contact", "fused Tree-LSTM", _program("gpu_contact.py", "tree-lstm", *size, *few), 10, 240)


def _products(smallest: bool) -> Iterator[Step]:
    size = ("--smallest",) if smallest else ()
    for part, seconds in (("products", 20), ("gradients", 8), ("meetings", 8), ("levels", 8)):
        yield Step("products", part, _program("gpu_products.py", "--only", part, *size), seconds, 120)


def _timelines(smallest: bool) -> Iterator[Step]:
    size = ("--batch-sizes", "2", *SMALLEST, "--launches", "2") if smallest else ("--batch-sizes", "1,16,64,128")
    yield Step("timelines", "timelines", _program("gpu_timelines.py", *size), 30, 180)
    few = size if smallest else ("--batch-sizes", "64", "--launches", "4")
    command = _program("gpu_timelines.py", *few, "--groups", "2" if smallest else "4")
    yield Step("timelines", "timelines of groups", command, 10, 120)


def _precisions(smallest: bool) -> Iterator[Step]:
    size = (*SMALLEST, "--steps", "2", "--rounds", "1") if smallest else ()
    asked = PRECISIONS[:1] if smallest else PRECISIONS
    for name in asked:
        command = _program("gpu_contact.py", "tree-lstm", "--precision", name, *size)
        yield Step("precisions", f"fused Tree-LSTM in {name}", command, 15, 240)
    every = ",".join(("float32", *asked))
    yield from _trees("precisions", "Tree-LSTM in all,", smallest, "--contenders", "vpps", "--precision", every)
    beside = ("--contenders", "vpps,graphs", "--precision", "bf16")
    yield from _trees("precisions", "Tree-LSTM in bf16 beside PyTorch,", smallest, *beside)


def _trees(stage: str, name: str, smallest: bool, *options: str) -> Iterator[Step]:
    few = (*SMALLEST, *ONE_ROUND) if smallest else ("--passes", "2")
    for size in (2,) if smallest else BATCH_SIZES:
        limit = () if smallest else ("--limit", str(max(64, 2 * size)))
        command = _program("gpu_treelstm.py", "--batch-sizes", str(size), "--no-compile", *options, *limit, *few)
        yield Step(stage, f"{name} batch={size}", command, 25, 120)


def _peers(smallest: bool) -> Iterator[Step]:
    strongest = () if smallest else ("--contenders", "vpps,graphs,manual")
    yield from _trees("peers", "Tree-LSTM", smallest, *EXACT, *strongest)
    some = ("2", "--groups", "2", *SMALLEST, *ONE_ROUND) if smallest else ("64", "--groups", "4", "--limit", "128")
    command = _program("gpu_treelstm.py", "--contenders", "vpps", "--no-compile", *EXACT, "--batch-sizes", *some)
    yield Step("peers", "Tree-LSTM of groups", command, 25, 120)
    few = (*SMALLEST, *ONE_ROUND) if smallest else ("--passes", "2")
    for size in (1,) if smallest else (1, 16, 64):
        limit = () if smallest else ("--limit", str(max(32, 2 * size)))
        tokens = "3" if smallest else "25,real"
        command = _program("gpu_lstm.py", "--batch-sizes", str(size), "--tokens", tokens, *EXACT, *limit, *few)
        yield Step("peers", f"LSTM batch={size}", command, 35, 120)


def test_files() -> list[Path]:
    """Return the files of the gpu tier, the most informative first."""

    def place(file: Path) -> int:
        return next((k for k, name in enumerate(FIRST) if file.stem.startswith(name)), len(FIRST))

    return sorted((ROOT / "tests" / "gpu").glob("test_*.py"), key=lambda file: (place(file), file.name))


def _tests(smallest: bool, cores: int) -> Iterator[Step]:
    common = (sys.executable, "-m", "pytest", "-v", "-m", "gpu", "-p", "no:cacheprovider", "-p", PLUGIN)
    # If a test hangs, even outside Python, its process is killed and replaced; then the next test runs.
    limit = (f"--timeout={TEST_SECONDS}", "--timeout-method=thread") if _there("pytest_timeout") else ()
    limit += ("-o", f"faulthandler_timeout={TEST_SECONDS}")
    for file in [f for f in test_files() if f.stem in DRY_RUN or not smallest]:
        alone = smallest or file.stem in ALONE
        workers = ("-n", str(1 if alone else min(WORKERS, cores))) if _there("xdist") else ()
        few = ("-k", DRY_RUN[file.stem]) if smallest else ()
        command = (*common, *limit, *workers, *few, f"tests/gpu/{file.name}")
        yield Step("tests", f"tests/gpu/{file.name}", command, 20, 420)


def _there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _sanitizer(smallest: bool) -> Iterator[Step]:
    size = SMALLEST if smallest else ("--hidden", "64", "--embedding", "64", "--vps", "16")
    plain = {"VPPS_PLAIN_ALLOCATIONS": "1", "VPPS_PATIENCE": "600"}
    for tool in ("memcheck", "racecheck", "synccheck"):
        command = ("compute-sanitizer", "--tool", tool, "--error-exitcode", "9", "--target-processes", "all")
        watched = _program("gpu_contact.py", "tree-lstm", *size, "--steps", "2", "--rounds", "1")
        yield Step("sanitizer", tool, (*command, *watched), 30, 180, plain, "compute-sanitizer")


def _endurance(smallest: bool) -> Iterator[Step]:
    size = (*SMALLEST, "--launches", "20", "--limit", "4") if smallest else ()
    for question, seconds in (("launches", 15), ("two", 8), ("abort", 30)):
        command = _program("gpu_endurance.py", question, *size)
        # A launch that waits for ever must end soon.
        patience = {"VPPS_PATIENCE": "3"} if question == "abort" else {}
        yield Step("endurance", question, command, seconds, 180, patience)


def _long(smallest: bool) -> Iterator[Step]:
    size = SMALLEST if smallest else ()
    one = ("--batch-sizes", "2", *size) if smallest else ()
    few = ("--passes", "1", "--limit", "4", "--profiled", "1") if smallest else ()
    yield Step("long", "host's share, bytes", _program("gpu_step.py", *one, *few), 30, 180)
    yield Step("long", "counters", _program("gpu_counters.py", *one), 30, 180, needs="ncu")
    if smallest:
        return  # the remaining steps have been run, with other numbers
    for size_of_batch in (1, 2, 4, 8, 16, 32, 64, 128):
        command = _program("gpu_treelstm.py", "--batch-sizes", str(size_of_batch))
        yield Step("long", f"all of Tree-LSTM batch={size_of_batch}", command, 120, 420)
    for size_of_batch in (1, 4, 16, 64):
        command = _program("gpu_lstm.py", "--batch-sizes", str(size_of_batch))
        yield Step("long", f"all of LSTM batch={size_of_batch}", command, 120, 420)


def environment(data: Path | None, cache: Path) -> dict[str, str]:
    """Return the variables of all steps: paths to this checkout and its data sets, and one kernel cache."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    found["VPPS_CACHE_DIR"] = str(cache)
    if data is not None:
        found["VPPS_DATA"] = str(data)
    return found
