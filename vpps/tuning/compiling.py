"""Compiles candidates, several at once, each compiler in a process of its own that Ctrl-C ends with us.

What is compiled goes into the kernel cache, where handles find it.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from vpps.compiler.arrangement import Arrangement
from vpps.engine.configuration import Configuration
from vpps.errors import CompileError, SpillError, VppsError
from vpps.kernel.processes import no_more
from vpps.kernel.programs import environment
from vpps.kernel.resources import Resources
from vpps.runtime.cores import usable_cores
from vpps.tuning.jobs import Job, KernelJob
from vpps.tuning.subject import Recipe

T = TypeVar("T")


@dataclass(slots=True)
class Compiled:
    """A candidate's kernel.

    Attributes:
        configuration: of the candidate.
        arrangement: what the chip holds; None before that is known.
        resources: as the compiler reports them; None unless it is a cubin.
        stepped_down: larger arrangements that spilled.
        barriers: of a step of training (or of evaluation) with the example.
        reason: why there is none; "" where there is.
    """

    configuration: Configuration
    arrangement: Arrangement | None = None
    resources: Resources | None = None
    stepped_down: int = 0
    barriers: float = 0
    reason: str = ""


class Compilers:
    """Runs jobs, so many at once. A context manager: whatever ends the block, no compiler outlives it.

    Args:
        at_once: default: one per core that this process may use.
        niceness: of the compilers, above ours: with 10 they leave the cores to whoever has something better to do.
    """

    def __init__(self, at_once: int | None = None, niceness: int = 0) -> None:
        self._niceness = niceness
        self._pool = ThreadPoolExecutor(at_once or usable_cores(), "vpps-compile")
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.RLock()  # `end` may come from a finaliser, within a call of this very thread
        self._planning = threading.Lock()
        self._ended = False
        # Python may exit, or nobody may need us any more, while a compiler runs in a session of its own.
        weakref.finalize(self, _kill_all, self._running, os.getpid())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def end(self) -> None:
        """Kill what runs; nothing more will. May be called from any thread."""
        with self._lock:
            self._ended = True
            running = list(self._running)
        for process in running:
            _kill(process)

    def run(self, job: Job) -> Resources | None:
        """Run a job in a process. Raises CompileError, SpillError as the job, CompileError if the process dies."""
        with self._lock:
            if self._ended:
                raise CompileError("compiling was ended")
            try:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "vpps.tuning.jobs", str(self._niceness)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                    env=_environment(), start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise CompileError(no_more("a process that compiles", error.strerror)) from None
            self._running.add(process)
        try:
            out, err = process.communicate(pickle.dumps(job))
        finally:
            with self._lock:
                self._running.discard(process)
        if process.returncode:
            last = err.decode(errors="replace").strip().splitlines()[-1:]
            raise CompileError(f"the compiling process ended with code {process.returncode}: {''.join(last)}")
        result = pickle.loads(out)  # written by our own process
        if isinstance(result, VppsError):
            raise result
        assert result is None or isinstance(result, Resources)
        return result

    def all(self, recipe: Recipe, configurations: Sequence[Configuration]) -> Iterator[tuple[int, Compiled]]:
        """Kernels of candidates, with their numbers, as they are done."""
        yield from self._as_done([partial(self.candidate, recipe, c) for c in configurations])

    def each(self, jobs: Sequence[Job]) -> Iterator[tuple[int, str]]:
        """Run jobs; their numbers as they are done, each with why it failed, or ""."""

        def tried(job: Job) -> str:
            try:
                self.run(job)
            except VppsError as error:
                return str(error)
            return ""

        yield from self._as_done([partial(tried, job) for job in jobs])

    def _as_done(self, tasks: Sequence[Callable[[], T]]) -> Iterator[tuple[int, T]]:
        try:
            waiting: dict[Future[T], int] = {self._pool.submit(task): k for k, task in enumerate(tasks)}
        except RuntimeError as error:
            if isinstance(error.__context__, KeyboardInterrupt):  # submit() waits, and Ctrl-C breaks that wait
                raise error.__context__ from None
            raise CompileError(no_more("a thread that compiles", error)) from None
        while waiting:
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield waiting.pop(future), future.result()

    def candidate(self, recipe: Recipe, configuration: Configuration) -> Compiled:
        """The kernel of one candidate, or why there is none."""
        found = recipe.specs(configuration)
        blocks = recipe.blocks(configuration) * configuration.onchip.groups
        stepped_down = 0
        try:
            while True:
                with self._planning:  # one thread at a time: traced cells keep what was made of them
                    spec, arrangement, parameters = next(found)
                job = KernelJob(recipe.target, spec.made_for(recipe.target, blocks), recipe.arch)
                try:
                    resources = self.run(job)
                    break
                except SpillError:
                    stepped_down += 1
            with self._planning:
                barriers = recipe.barriers(configuration, parameters)
        except VppsError as error:
            return Compiled(configuration, reason=str(error))
        return Compiled(configuration, arrangement, resources, stepped_down, barriers)


def _environment() -> dict[str, str]:
    """Of a compiling process: it finds this vpps, however this one was found."""
    found, root = environment(), str(Path(__file__).absolute().parents[2])
    return found | {"PYTHONPATH": os.pathsep.join(filter(None, [root, found.get("PYTHONPATH", "")]))}


def _kill_all(running: set[subprocess.Popen[bytes]], pid: int) -> None:
    """At the end of the process that started them, not of one that was forked from it."""
    if os.getpid() == pid:
        for process in list(running):
            _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With the compiler that it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
