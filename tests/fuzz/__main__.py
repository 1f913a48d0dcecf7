"""python -m tests.fuzz --minutes M [--seed S] [--only KIND] [--case N] [--sanitize]: see `scripts/fuzz`."""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from importlib import import_module
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import pytest

from tests.fuzz import autograd, sanitized
from tests.fuzz.minimise import minimise
from tests.fuzz.program import LINES, Finding, outcome, packed, sort_of
from tests.kernels import compile_tails_quickly

KINDS = ("graphs", "maps", "histories", "files", "interruptions", "magnitudes", "constants")
SHRINKING = 45.0
"""Seconds for making a case smaller."""
HANGING = 300
"""Seconds after which a case hangs: its stacks are shown, and the run ends."""


def case_of(seed: int, number: int, kinds: tuple[str, ...] = KINDS) -> tuple[str, Any]:
    """Return the kind and the data of a case."""
    kind = KINDS[number % len(KINDS)]
    return kind, import_module(f"tests.fuzz.{kind}").draw(Random(f"{seed}/{number}"))


def finding(case: Any) -> Finding | None:
    """Return a case's finding, or None."""
    try:
        case.check()
    except Finding as found:
        return found
    except Exception as error:  # making the case failed: vpps refused a call that it should accept
        program = case.program() if hasattr(case, "program") else []
        found = Finding(f"{type(error).__name__}: {error}", program)
        found.__cause__ = error
        return found
    return None


def smaller(case: Any, found: Finding, seconds: float = SHRINKING) -> tuple[Any, Finding]:
    """Return a smaller case with the same finding."""
    latest = [found]

    def fails(changed: Any) -> bool:
        again = finding(changed)
        if again is None or sort_of(again) != sort_of(found):
            return False
        latest[0] = again
        return True

    return minimise(case, fails, seconds), latest[0]


def report(number: int, kind: str, seed: int, case: Any, found: Finding) -> None:
    """Shrink the case, and print it as a program."""
    case, found = smaller(case, found)
    program = packed(found.program)
    with tempfile.TemporaryDirectory() as folder:
        ends = outcome(program, Path(folder))
    print(f"\n{kind}: {str(found)[:300]}\nagain: scripts/fuzz --seed {seed} --case {number}")
    print(f"the program of {len(program)} lines {ends}")
    if len(program) > LINES:
        print("the data of the case:", case)
    print("-" * 100, *program, "-" * 100, sep="\n", flush=True)


def main() -> int:
    """Run cases until the time is up; returns 1 if there are findings."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description="Random cases against oracles.")
    parser.add_argument("--minutes", type=float, default=1.0, help="duration (default 1)")
    parser.add_argument("--seed", type=int, help="seed of all cases (default: a new one each time)")
    parser.add_argument("--only", choices=KINDS, help="cases of one kind")
    parser.add_argument("--case", type=int, help="one case, by its number")
    parser.add_argument("--sanitize", action="store_true", help="planner and recorder check every access (slow)")
    arguments = parser.parse_args()
    if arguments.sanitize:
        sanitized.begin(sys.argv[1:])
    seed = SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    faulthandler.enable()
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    compared = "is compared" if autograd.INSTALLED else "is not installed, and not compared"
    print(f"seed {seed}; PyTorch's autograd {compared} with the reference", flush=True)
    counts, sorts = Counter[str](), dict[str, list[int]]()
    end, number, said = time.monotonic() + 60 * arguments.minutes, 0, time.monotonic()
    while time.monotonic() < end:
        if arguments.case is not None:
            number = arguments.case
        kind = KINDS[number % len(KINDS)]
        if arguments.only in (None, kind) or arguments.case is not None:
            faulthandler.dump_traceback_later(HANGING, exit=True)
            _, case = case_of(seed, number)
            counts[kind] += 1
            found = finding(case)
            if found is not None:
                sort = f"{kind}: {sort_of(found)}"
                sorts.setdefault(sort, []).append(number)
                if len(sorts[sort]) == 1:
                    faulthandler.cancel_dump_traceback_later()
                    report(number, kind, seed, case, found)
            if time.monotonic() > said + 10:
                said = time.monotonic()
                told = ", ".join(f"{n} {k}" for k, n in counts.items())
                print(f"case {number}: {told}; {sum(map(len, sorts.values()))} findings", flush=True)
        if arguments.case is not None:
            break
        number += 1
    faulthandler.cancel_dump_traceback_later()
    told = ", ".join(f"{n} {k}" for k, n in counts.items())
    print(f"\nseed {seed}: {told}; {sum(map(len, sorts.values()))} findings")
    for sort, numbers in sorts.items():
        print(f"{len(numbers):5} x {sort}   (--case {', '.join(map(str, numbers[:8]))})")
    return 1 if sorts else 0


if __name__ == "__main__":
    os.environ.setdefault("VPPS_TUNING", "0")  # cases do not depend on measurements of this machine
    compile_tails_quickly(pytest.MonkeyPatch())
    if sys.argv[1:2] in (["scripts"], ["ranks"]):
        sys.exit(import_module(f"tests.fuzz.{sys.argv[1]}").main(sys.argv[2:]))
    sys.exit(main())
