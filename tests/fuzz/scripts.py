"""Attacks the verifier: scripts are broken, and the verifier must refuse those that are unsafe on the emulator."""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from tests.fuzz.breaking import broken
from tests.fuzz.subjects import RECIPES, Subject
from vpps.errors import ScriptError
from vpps.script.verify import verify

ORDERS = 4  # orders of the threads for an accepted script
TIMEOUT = 5.0  # seconds after which a broken script counts as endless
MOST_BYTES = 8 << 30  # limit of a broken script's address space beyond this process's


@dataclass(frozen=True)
class Outcome:
    """The outcome of a broken script.

    Attributes:
        mutation: kind of the mutation.
        told: the changes, as text.
        refusal: the verifier's message; "" if it accepted the script.
        fault: kind of the emulator's first finding; "" for none.
        message: the finding, as text.
        other: True if results differ.
    """

    subject: str
    seed: int
    number: int
    mutation: str
    told: str
    refusal: str
    fault: str
    message: str
    other: bool = False

    @property
    def is_defect(self) -> bool:
        """Return True for a defect of the verifier: it accepted an unsafe script, or failed itself."""
        return (bool(self.fault) and not self.refusal) or self.refusal.startswith("!")

    def __str__(self) -> str:
        return (
            f"{self.subject!r} --seed {self.seed} --first {self.number}: {self.mutation}\n  {self.told}\n"
            f"  verifier: {self.refusal or 'accepted'}\n  emulator: {self.fault or 'safe'}: {self.message}"
        )


def refusal_of(b: object) -> str:
    """Return the verifier's message; a mark before it shows an unexpected failure."""
    try:
        verify(b.script, b.layout, b.origin)  # type: ignore[attr-defined]
    except ScriptError as error:
        return str(error) or "refused"
    except Exception as error:
        return f"!{type(error).__name__}: {error}"
    return ""


def run(subject: Subject, script: np.ndarray, orders: range) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield (kind, message, pool afterwards) for each thread order (a seed of the emulator)."""
    for subject.machine.seed in orders:
        subject.machine.pool[:] = subject.pool
        subject.machine.launch(script)
        failure = subject.machine.wait()
        message = failure.message if failure is not None else ""
        kind = "stopped by the kernel" if message.startswith("the kernel stopped") else message.partition(":")[0]
        yield kind, message, subject.machine.pool.copy().view(np.uint32)


def judged(subject: Subject, seed: int, number: int, reference: np.ndarray) -> Outcome:
    """Return the outcome of a broken script, in this process."""
    mutation, b = broken(subject, seed, number)
    refusal = refusal_of(b)
    fault, message, other = "", "", False
    first = None
    script = np.pad(b.script, 1 << 16)[1 << 16 : -(1 << 16)]
    first_order = number % 7
    orders = range(first_order, first_order + (1 if refusal else ORDERS))
    for fault, message, pool in run(subject, script, orders):
        if fault:
            break
        if first is None:
            first = pool
            other = not np.array_equal(pool, reference)
        elif subject.exact and not np.array_equal(pool, first):
            fault, message = "order", f"results depend on the order of threads: {np.flatnonzero(pool != first)[:9]}"
            break
    return Outcome(subject.name, seed, number, mutation, "; ".join(b.told), refusal, fault, message, other)


def _work(subject: Subject, seed: int, numbers: range, out: Connection) -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    most = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    *_, (fault, message, reference) = run(subject, subject.script, range(1))
    assert not fault, message
    for number in numbers:
        out.send(judged(subject, seed, number, reference))
    out.close()


def outcomes(subject: Subject, seed: int, numbers: range) -> Iterator[Outcome]:
    """Yield the outcomes of broken scripts. They run in a separate process: a script is unsafe if the process dies."""
    context = multiprocessing.get_context("fork")
    while numbers:
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(subject, seed, numbers, theirs))
        process.start()
        theirs.close()
        number, fault, message = numbers.start, "crash", "the process died"
        try:
            for number in numbers:  # noqa: B007 - it is asked for below
                if not mine.poll(TIMEOUT):
                    fault, message = "never ends", f"it ran for {TIMEOUT:g} s"
                    break
                yield mine.recv()
            else:
                return
        except EOFError:
            pass
        finally:
            process.kill()
            process.join()
            mine.close()
        mutation, b = broken(subject, seed, number)
        yield Outcome(subject.name, seed, number, mutation, "; ".join(b.told), refusal_of(b), fault, message)
        numbers = range(number + 1, numbers.stop)


def main(arguments: list[str]) -> int:
    """Break scripts and print the outcomes; returns 1 if the verifier accepted an unsafe one."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz scripts", description=__doc__)
    parser.add_argument("--count", type=int, default=7200, help="broken scripts in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first one of each script")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="time limit")
    parser.add_argument("--only", choices=RECIPES, action="append", help="only these scripts")
    parser.add_argument("--show", action="store_true", help="print every outcome, not only the defects")
    options = parser.parse_args(arguments)
    names = options.only or list(RECIPES)
    turn = options.seed * 5 % len(names)  # so that short runs with different seeds begin with different scripts
    names = names[turn:] + names[:turn]
    tried: Counter[tuple[str, str]] = Counter()
    faults: Counter[str] = Counter()
    other = defects = 0
    began = time.monotonic()
    for k, name in enumerate(names):
        share = options.count * (k + 1) // len(names) - options.count * k // len(names)
        if time.monotonic() - began > 60 * options.minutes:
            break
        subject = Subject.make(name)
        for o in outcomes(subject, options.seed, range(options.first, options.first + share)):
            what = ("unsafe" if o.fault else "safe") + (", refused" if o.refusal else ", accepted")
            tried[o.mutation, what] += 1
            faults[o.fault] += 1
            other += bool(not o.fault and not o.refusal and o.other)
            if o.is_defect or options.show:
                print(o, flush=True)
            defects += o.is_defect
            if time.monotonic() - began > 60 * options.minutes:
                break
        subject.handle.close()
        print(f"# {name}: {share} scripts, {time.monotonic() - began:.0f} s, {defects} defects so far", file=sys.stderr)
    report(tried, faults, other, defects, options.seed)
    return int(defects > 0)


def report(tried: Counter[tuple[str, str]], faults: Counter[str], other: int, defects: int, seed: int) -> None:
    """Print the figures of a run."""
    columns = ("unsafe, refused", "unsafe, accepted", "safe, refused", "safe, accepted")
    print(f"{'mutation':26s}" + "".join(f"{c:>18s}" for c in columns))
    for mutation in sorted({m for m, _ in tried}):
        print(f"{mutation:26s}" + "".join(f"{tried[mutation, c]:18d}" for c in columns))
    totals = [sum(n for (_, what), n in tried.items() if what == c) for c in columns]
    print(f"{'all':26s}" + "".join(f"{n:18d}" for n in totals))
    for fault, n in faults.most_common():
        if fault:
            print(f"  {fault}: {n}")
    safe = totals[2] + totals[3]
    print(
        f"seed {seed}: {sum(totals)} tried, {totals[0] + totals[1]} unsafe, {totals[1]} of them accepted; "
        f"{safe} safe, {totals[2]} of them refused ({totals[2] / max(1, safe):.0%}); "
        f"{other} of those accepted compute something else; {defects} defects"
    )
