"""Everything that only a GPU can tell, within a budget of seconds, in one JSON file.

In this order, as far as time allows: the tests of the gpu tier (tests/gpu, file by file), compute-sanitizer on a small
case where there is such a tool, the programs of bench/gpu_micro, the benches bench/gpu_*.py. A part that fails or takes
too long does not stop the others. The file is written anew after every part: whatever ends the program leaves it there.

Runs from a plain checkout; packages that the machine lacks may come as wheels. Exit status: 0, 1 where a part failed, 2
without a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import harness

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("tests", "sanitizer", "micro", "benches")
SMALLEST = 15  # seconds; a part that has less left is not begun
KEPT = 3000  # characters of either end of the output of a part that failed
WORKERS = 8  # processes of the tests that compile much
# First what tells most; files that are not named follow.
FIRST = ("test_machine.py", "test_training.py", "test_slots.py", "test_ops.py")
SEQUENTIAL = ("test_machine.py", "test_training.py")  # they measure time, or want the GPU for themselves
SMALL_CASE = "tests/gpu/test_training.py::test_training_follows_the_reference"

# Printed by another process: this one must not begin to use the GPU, nor fail where packages are missing.
DESCRIBE = """
import json
from vpps.runtime.driver import usable_gpu
print(json.dumps(usable_gpu()._asdict()))
"""
PACKAGES = (
    "vpps", "numpy", "cupy-cuda13x", "cupy-cuda12x", "cuda-bindings", "cuda-core", "nvidia-cuda-nvrtc",
    "nvidia-cuda-nvrtc-cu12", "torch", "pytest",
)  # fmt: skip
VERSIONS = f"""
import importlib.metadata, json, platform
found = {{"python": platform.python_version()}}
for name in {PACKAGES!r}:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Part:
    """A program to run.

    Attributes:
        name: as the report has it.
        command: its arguments.
        most: seconds that it may take at most.
        junit: file to which it writes the outcome of tests.
    """

    name: str
    command: list[str]
    most: float
    junit: Path | None = None


@dataclass
class Outcome:
    """What became of a part.

    Attributes:
        state: "ok", "failed", "timeout" or "not run".
        seconds: that it took.
        results: lines of JSON that it printed, or counts and failures of tests.
        output: what it said, or both ends of that, unless all went well.
    """

    part: str
    state: str
    seconds: float = 0.0
    results: list[Any] = field(default_factory=list)
    output: str = ""


def run(part: Part, seconds: float, environment: dict[str, str]) -> Outcome:
    """Run a part for so many seconds at most; then it and what it started are ended."""
    begun = time.monotonic()
    with _file() as said, _file() as results:
        process = subprocess.Popen(
            part.command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=results, stderr=said,
            start_new_session=True,
        )  # fmt: skip
        try:
            status = process.wait(timeout=min(part.most, seconds))
            state = "failed" if status else "ok"
        except subprocess.TimeoutExpired:
            state = "timeout"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        results.seek(0)
        said.seek(0)
        printed, errors = results.read(), said.read()
    found = _tests(part.junit) if part.junit is not None else _json_lines(printed)
    output = "" if state == "ok" else _ends(printed if part.junit is not None else "") + _ends(errors)
    return Outcome(part.name, state, round(time.monotonic() - begun, 1), found, output)


def _file() -> IO[str]:
    """A file, as a pipe would have to be read while the part runs; gone when closed."""
    return tempfile.TemporaryFile("w+", errors="replace")


def _ends(text: str) -> str:
    """The beginning, where a crash says what it is, and the end, where an exception does."""
    return text if len(text) <= 2 * KEPT else f"{text[:KEPT]}\n[...]\n{text[-KEPT:]}"


def _json_lines(text: str) -> list[Any]:
    """The lines that are JSON objects; a program that was ended may leave half a line."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    return found


def _tests(junit: Path) -> list[Any]:
    """Counts, and what failed; nothing where the tests did not come to their end."""
    if not junit.exists():
        return []
    suite = ET.parse(junit).getroot().find("testsuite")
    if suite is None:
        return []
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    bad = [
        {"test": f"{case.get('classname')}.{case.get('name')}", "message": (fault.get("message") or "")[:500]}
        for case in suite.iter("testcase")
        for fault in [*case.findall("failure"), *case.findall("error")]
    ]
    return [{**counts, "failed": bad[:100]}]


def parts(kinds: list[str], quick: bool, scratch: Path, environment: dict[str, str]) -> list[Part]:
    """What there is to run, most telling first."""
    found = []
    python = sys.executable
    pytest = [python, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    files = sorted((ROOT / "tests" / "gpu").glob("test_*.py"))
    files.sort(key=lambda f: FIRST.index(f.name) if f.name in FIRST else len(FIRST))
    if "tests" in kinds:
        parallel = ["-n", str(min(WORKERS, harness.usable_cores()))] if _has("xdist", environment) else []
        for file in files:
            junit = scratch / f"{file.stem}.xml"
            workers = [] if file.name in SEQUENTIAL else parallel
            first = ["-x"] if quick else []
            name = f"tests/gpu/{file.name}"
            found.append(Part(name, [*pytest, *workers, *first, f"--junitxml={junit}", name], 300, junit))
    if "sanitizer" in kinds and (tool := shutil.which("compute-sanitizer", path=environment.get("PATH"))):
        for check in ("memcheck", "racecheck"):
            command = [tool, "--tool", check, "--error-exitcode", "9", "--target-processes", "all"]
            junit = scratch / f"{check}.xml"
            found.append(
                Part(f"compute-sanitizer {check}", [*command, *pytest, f"--junitxml={junit}", SMALL_CASE], 120, junit)
            )
    few = ["--quick"] if quick else []
    if "micro" in kinds:
        programs = sorted((ROOT / "bench" / "gpu_micro").glob("*.py"))
        mains = [p for p in programs if '__name__ == "__main__"' in p.read_text(encoding="utf-8")]
        found += [Part(f"gpu_micro/{p.name}", [python, str(p), *few], 60 if quick else 120) for p in mains]
    if "benches" in kinds:
        benches = [p for p in sorted((ROOT / "bench").glob("gpu_*.py")) if p != Path(__file__).resolve()]
        found += [Part(p.name, [python, str(p), *few], 300) for p in benches]
    return found


def _has(module: str, environment: dict[str, str]) -> bool:
    test = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([sys.executable, "-c", test], env=environment, check=False).returncode == 0


def _asked(code: str, environment: dict[str, str]) -> Any:
    """What another process prints as JSON. Raises RuntimeError with its last words."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no output"])[-1])
    return json.loads(done.stdout)


def _nvidia_smi() -> dict[str, str]:
    """What the driver's tool says of the first GPU; empty where there is no such tool."""
    asked = "driver_version,memory.total,clocks.max.sm,clocks.max.mem,power.limit,mig.mode.current,compute_mode"
    try:
        command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader", "--id=0"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(asked.split(","), (value.strip() for value in done.stdout.split(",")), strict=False))


def environment_of(wheels: Path | None, scratch: Path) -> dict[str, str]:
    """The environment of the parts: this checkout and the packages in `wheels` are found, kernels have a cache."""
    paths = [str(ROOT)]
    if wheels is not None:
        files = sorted(map(str, wheels.glob("*.whl")))
        if not files:
            sys.exit(f"--wheels {wheels}: there are no wheels in that folder")
        site = scratch / "site"
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--target"]
        subprocess.run([*command, str(site), *files], check=True)
        paths.append(str(site))
    if before := os.environ.get("PYTHONPATH"):
        paths.append(before)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    environment.setdefault("VPPS_CACHE_DIR", str(scratch / "cache"))
    return environment


def destination(given: Path | None, topic: str, gpu: str) -> Path:
    """Where the report goes."""
    if given is not None:
        return given
    name = f"{datetime.date.today().isoformat()}-{topic}.json"
    if os.environ.get("OUT"):
        return Path(os.environ["OUT"]) / name
    return ROOT / "bench" / "results" / gpu.lower().split()[-1] / name


def write(report: dict[str, Any], path: Path) -> None:
    """Replace the report in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(path)


def check(wanted: list[Part], budget: float, environment: dict[str, str], report: dict[str, Any], path: Path) -> bool:
    """Run parts until the seconds of the budget are gone. Whether none of them failed."""
    deadline = time.monotonic() + budget
    outcomes: list[Outcome] = []
    for part in wanted:
        left = deadline - time.monotonic()
        last = run(part, left, environment) if left >= SMALLEST else Outcome(part.name, "not run")
        outcomes.append(last)
        counts = {k: v for k, v in last.results[0].items() if k != "failed"} if part.junit and last.results else ""
        print(f"{last.state:8} {last.seconds:6.1f} s  {part.name} {counts}", file=sys.stderr, flush=True)
        report["parts"] = [asdict(outcome) for outcome in outcomes]
        write(report, path)
    return not any(outcome.state in ("failed", "timeout") for outcome in outcomes)


def main() -> None:
    """Describe the machine, then run all parts."""
    begun = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=540, metavar="SECONDS", help="for everything (default 540)")
    parser.add_argument("--quick", action="store_true", help="fewer cases; tests end at the first failure of a file")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(KINDS), help=f"of {','.join(KINDS)}")
    parser.add_argument("--wheels", type=Path, help="folder of wheels to install for this run")
    parser.add_argument("--topic", default="check", help="part of the report's name")
    parser.add_argument("--out", type=Path, help="the report (default: in $OUT, else in bench/results)")
    parser.add_argument("--commit", help="of the checkout, where there is no git")
    options = parser.parse_args()
    if unknown := set(options.only) - set(KINDS):
        parser.error(f"--only {','.join(sorted(unknown))}: expected some of {','.join(KINDS)}")
    with tempfile.TemporaryDirectory(prefix="vpps-gpu-check-") as folder:
        scratch = Path(folder)
        environment = environment_of(options.wheels, scratch)
        try:
            device = _asked(DESCRIBE, environment)
        except RuntimeError as error:
            print(f"no GPU to check: {error}", file=sys.stderr)
            sys.exit(2)
        report: dict[str, Any] = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "device": {**device, **_nvidia_smi()},
            "versions": _asked(VERSIONS, environment),
            "machine": harness.machine(),
            "commit": {"id": options.commit, "dirty": None} if options.commit else harness.commit(),
            "quick": options.quick,
            "parts": [],
        }
        path = destination(options.out, options.topic, device["name"])
        wanted = parts(options.only, options.quick, scratch, environment)
        well = check(wanted, options.budget - (time.monotonic() - begun), environment, report, path)
    print(path)
    sys.exit(not well)


if __name__ == "__main__":
    main()
