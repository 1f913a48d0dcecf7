"""Runs all checks that need a GPU, the most informative first, so that a run can be ended at any time.

Every step runs in its own process. Every line of JSON that it prints is written at once to results.jsonl in the folder
--out, with the device, the versions, the commit and the date. A step that fails or exceeds its time (SIGINT, then
SIGKILL) is named, and the next one runs. The other files are log.txt, the output of all steps; summary.txt, a line for
each step; and kernels.tar.gz, the compiled kernels, for --continue on another machine.

Stages:
{stages}

Works from a plain checkout, without git and with nothing installed: packages are found by PYTHONPATH. Exit status: 0; 1
if a step failed or was ended; 2 without a GPU; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import signal
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import harness

from gpu_check import record, running
from gpu_check.stages import ROOT, STAGES, Step, environment, steps
from vpps.config import cache_dir

NO_GPU = 3  # exit status of gpu_contact.py versions
RESERVE = 2 * running.GRACE  # seconds for an orderly end
ENDED_WELL = "ok"


class Run:
    """One call of the program.

    Args:
        known: states of steps in the continued run.
    """

    def __init__(self, options: argparse.Namespace, known: dict[str, str]) -> None:
        self.deadline = time.monotonic() + 60 * options.minutes - RESERVE
        self.folder, self.known = options.out, known
        self.results, self.log = record.Lines(self.folder / record.RESULTS), record.Lines(self.folder / record.LOG)
        self.environment = environment(options.data, options.cache)
        self.commit = options.commit
        self.common: dict[str, Any] = {"commit": harness.commit()}
        self.outcomes: dict[str, str] = {}  # a summary line for each step
        self.bad = False

    def write(self, step: Step, line: dict[str, Any]) -> None:
        """Write a step's line, and add the versions that it depends on unless the line has them."""
        if step.name == "versions" and line.get("case") == "versions":
            self.common |= {"device": line["gpu"]["name"], "machine": line["machine"], "cuda": line["gpu"]["cuda"]}
            self.common |= {name: line["versions"].get(name) for name in ("driver", "nvrtc")}
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        line = {"stage": step.stage, "step_name": step.name, "time": now, **self.common, **line}
        if self.commit is not None:  # without git, a step cannot tell its commit
            line["commit"] = self.commit
        self.results.write(json.dumps(line))

    def take(self, step: Step, line: str, printed: bool) -> None:
        """Handle an output line of a step."""
        found = record.parsed(line) if printed else None
        if found is None:
            self.log.write(f"{step.name}: {line}")
        else:
            self.write(step, found)

    def do(self, step: Step) -> int:
        """Run a step if enough time is left; returns its exit status, or 0."""
        left = self.deadline - time.monotonic()
        if step.needs and shutil.which(step.needs, path=self.environment.get("PATH")) is None:
            self.tell(step, "not here", f"{step.needs} is not on the PATH")
            return 0
        if left < step.seconds:
            self.tell(step, "not begun", f"takes about {step.seconds:.0f} s, and {max(0, left):.0f} s are left")
            return 0
        self.write(step, {"event": "begin"})
        most = min(step.most, left)
        try:
            outcome = running.run(
                step.command, {**self.environment, **step.environment}, ROOT, most,
                lambda line, printed: self.take(step, line, printed),
            )  # fmt: skip
        except KeyboardInterrupt:
            self.write(step, {"event": "end", "state": "interrupted"})
            self.tell(step, "interrupted", "")
            raise
        state = outcome.state
        if state == "ended":
            state = "hung" if most == step.most else "out of time"
        self.bad |= state in ("failed", "hung")
        end = {"event": "end", "state": state, "seconds": outcome.seconds, "status": outcome.status}
        said = [line.replace(f"{ROOT}/", "") for line in outcome.said]  # results are read on other machines
        self.write(step, end | {"said": said})
        self.tell(step, state, outcome.said[-1] if outcome.said else "", outcome.seconds)
        return outcome.status

    def tell(self, step: Step, state: str, why: str, seconds: float = 0.0) -> None:
        """Show a step's outcome, and keep it in the summary."""
        line = f"{state:11} {seconds:6.1f} s  {step.stage}: {step.name}{f': {why[:200]}' if why else ''}"
        self.outcomes[step.name] = line
        print(line, file=sys.stderr, flush=True)
        before = [f"{state:11} earlier   {name}" for name, state in self.known.items() if name not in self.outcomes]
        record.replace(self.folder / record.SUMMARY, "\n".join([*before, *self.outcomes.values(), ""]))


def ordered(every: list[Step], known: dict[str, str]) -> list[Step]:
    """Return the steps of a run that continues another: first the steps that it did not start, then those that did not
    succeed. A step that started but never ended is among the latter: it may have crashed the machine."""
    versions, *others = every
    left = [step for step in others if known.get(step.name) != ENDED_WELL]
    return [versions, *sorted(left, key=lambda step: known.get(step.name) in ("failed", "hung", "begun"))]


def description() -> str:
    """Return the text of --help."""
    margin = 13 * " "
    stages = [textwrap.fill(f"  {k:10} {v}", 100, subsequent_indent=margin) for k, v in STAGES.items()]
    return (__doc__ or "").replace("{stages}", "\n".join(stages))


def parse_options(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="gpu_check", description=description(), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--minutes", type=float, default=9, help="steps that exceed it do not start (default %(default)s)")
    add("--continue", dest="earlier", type=Path, metavar="FOLDER", help="folder or results file of a run to continue")
    add("--out", type=Path, default=ROOT / "bench/results/gpu_check", metavar="FOLDER", help="(default %(default)s)")
    add("--data", type=Path, metavar="FOLDER", help="folder of data sets, with sst/train.txt and wikiner/en.txt")
    add("--only", type=lambda text: text.split(","), default=list(STAGES), metavar="STAGE,...", help="these stages")
    add("--commit", help="commit of the checkout, if git is missing")
    add("--cache", type=Path, default=cache_dir(), metavar="FOLDER", help="cache of kernels (default %(default)s)")
    add("--smallest", action="store_true", help="a dry run: the smallest sizes, no figures")
    options = parser.parse_args(arguments)
    if unknown := set(options.only) - set(STAGES):
        parser.error(f"--only {','.join(sorted(unknown))}: expected some of {','.join(STAGES)}")
    for name in ("out", "data", "cache"):  # steps run in another folder
        if (path := getattr(options, name)) is not None:
            setattr(options, name, path.resolve())
    if options.data is not None and not options.data.is_dir():
        parser.error(f"--data {options.data}: there is no such folder")
    return options


def continued(options: argparse.Namespace) -> dict[str, str]:
    """Return the states of steps in the continued run, and copy its lines and kernels."""
    if options.earlier is None:
        return {}
    path = record.results_of(options.earlier).resolve()
    record.bring_kernels(path.with_name(record.KERNELS), options.cache)
    lines = list(record.read(path))
    own = options.out / record.RESULTS
    if path != own:
        options.out.mkdir(parents=True, exist_ok=True)
        record.replace(own, "".join(f"{json.dumps(line)}\n" for line in lines))
    return record.states(iter(lines))


def main(arguments: list[str] | None = None) -> int:
    """Run the steps for which there is time; returns the exit status."""
    options = parse_options(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # timeout(1) sends that
    if options.earlier is None and (options.out / record.RESULTS).exists():
        raise SystemExit(f"{options.out} has results already: --continue {options.out}, or another --out")
    known = continued(options)
    run = Run(options, known)
    every = steps(options.smallest, harness.usable_cores())
    wanted = [step for k, step in enumerate(every) if not k or step.stage in options.only]
    status = 0
    try:
        for k, step in enumerate(ordered(wanted, known)):
            if run.do(step) == NO_GPU and not k:
                status = 2
                break
    except KeyboardInterrupt:
        status = 130
    try:
        if not options.smallest and (why := record.keep_kernels(options.cache, options.out / record.KERNELS)):
            run.log.write(f"{record.KERNELS}: {why}")
    except KeyboardInterrupt:
        run.log.write(f"{record.KERNELS}: interrupted, the compiled kernels stay in {options.cache}")
        status = 130
    print(options.out)
    return status or int(run.bad)
