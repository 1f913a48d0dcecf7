"""Jobs of compilers, and the process that runs one: `python -m vpps.tuning.jobs NICENESS`."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path

from vpps.errors import VppsError
from vpps.kernel import processes
from vpps.kernel.resources import Kernel, Resources
from vpps.kernel.spec import KernelSpec
from vpps.script.tails import Tail
from vpps.targets import TARGETS


@dataclass(frozen=True, slots=True)
class KernelJob:
    """A kernel that is made for a model, of a target by name."""

    target: str
    spec: KernelSpec
    arch: str

    def run(self) -> Resources | None:
        """Have it in the kernel cache. Raises CompileError, SpillError."""
        kernel: Kernel = TARGETS[self.target].compile(self.spec, self.arch)
        return kernel.resources


@dataclass(frozen=True, slots=True)
class CpuJob:
    """The kernel of a tile, one that rounds where it must, and a library of tails."""

    tile: str | None
    tails: tuple[Tail, ...] = ()
    rounds: bool = False

    def run(self) -> None:
        """Compile what is not in the cache. Raises CompileError."""
        from vpps.kernel.host_compiler import build_cpu, build_tails

        build_cpu(self.tile, self.rounds)
        if self.tails:
            build_tails(self.tails, tile_name=self.tile)


Job = KernelJob | CpuJob
"""Something to compile. It is pickled, and run by a process that knows nothing else."""


def step_back(niceness: int) -> None:
    """Let others have the cores first, by so much; 0 changes nothing."""
    if niceness:
        os.nice(niceness)
        # We lead a session. Where Linux shares the cores among sessions, `nice` means nothing to other ones; this does.
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(niceness))


def main() -> None:
    """Of a compiling process: a pickled job comes in, its pickled result or error goes out."""
    step_back(int(sys.argv[1]))
    job: Job = pickle.loads(sys.stdin.buffer.read())
    result: Resources | VppsError | None
    try:
        result = job.run()
    except VppsError as error:
        result = error
    sys.stdout.buffer.write(pickle.dumps(result))


if __name__ == "__main__":
    processes.end_with_parent()
    main()
