"""Table of environment variables. They are read at each use, so that tests and notebooks can change them."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import warnings
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable: its name, default and meaning."""

    name: str
    default: str
    doc: str

    def get(self) -> str:
        """Return the value of the variable, or its default."""
        return os.environ.get(self.name, "") or self.default

    @property
    def is_set(self) -> bool:
        """True if the environment sets the variable to a non-empty value."""
        return bool(os.environ.get(self.name))


CACHE_DIR = Variable(
    "VPPS_CACHE_DIR", "", "directory of the compiled kernels; default: vpps in the user's cache directory"
)
CACHE_SIZE = Variable(
    "VPPS_CACHE_SIZE",
    "1G",
    "size limit of the compiled kernels, such as 500M or 2G; the least recently used are deleted first; 0: no limit",
)
LOG = Variable(
    "VPPS_LOG",
    "",
    "debug, info, warning or error: log messages from that level on go to standard error, and notices do not",
)
TARGET = Variable("VPPS_TARGET", "auto", "target of handles that do not name one")
ISA = Variable("VPPS_ISA", "auto", "cpu target: avx512, avx2, neon or portable, instead of the processor's best")
PATIENCE = Variable(
    "VPPS_PATIENCE",
    "10",
    "cuda target: seconds that virtual processors wait before they end a launch; 60 times as many under tools such as "
    "compute-sanitizer; 0: no limit",
)
PLAIN_ALLOCATIONS = Variable(
    "VPPS_PLAIN_ALLOCATIONS",
    "0",
    "cuda target: 1: the driver allocates every buffer, not CuPy's pool, so that compute-sanitizer sees its bounds",
)
VERIFY = Variable("VPPS_VERIFY", "0", "1: verify every script before it runs (slow; on in vpps's own tests)")
PASSES = Variable(
    "VPPS_PASSES", "all", "passes of the cell compiler (vpps.Passes): all, none, NAME or -NAME, comma-separated"
)
SIMT_SEED = Variable("VPPS_SIMT_SEED", "0", "simt target: seed of the order in which threads run; 0 runs them in order")
SIMT_RACES = Variable("VPPS_SIMT_RACES", "1", "simt target: 0: do not look for races, which is faster")
RECORDER = Variable(
    "VPPS_RECORDER",
    "auto",
    "recorder of calls of cells: python, compiled (an error if it is not available), or auto: compiled if available",
)
TUNING = Variable(
    "VPPS_TUNING",
    "1",
    "file with the fastest options that vpps-profile and autotune found, for handles to use; 1: tuning.json in the "
    "cache directory; 0: none",
)
CXX = Variable(
    "CXX",
    "",
    "C++ compiler for tails, for the simt target and for parts that were not installed compiled; default: g++, "
    "clang++, or the ziglang package's",
)
XDG_CACHE_HOME = Variable("XDG_CACHE_HOME", "", "the user's cache directory; default: ~/.cache")
OMP_WAIT_POLICY = Variable(
    "OMP_WAIT_POLICY", "", "PASSIVE: idle threads of PyTorch sleep, so vpps gives no notice that they share its cores"
)

TORCH_RESTARTS = Variable("TORCHELASTIC_RESTART_COUNT", "0", "set by torchrun: how often it has restarted processes")
PMI_TASKS = Variable(
    "PMI_SIZE", "1", "set by mpiexec of MPICH, and by srun --mpi=pmi2: how many processes it has started"
)
OPEN_MPI_TASKS = Variable("OMPI_COMM_WORLD_SIZE", "1", "set by mpiexec of Open MPI: how many processes it has started")
SLURM_TASKS = Variable("SLURM_STEP_NUM_TASKS", "1", "set by srun: how many processes it has started")
VARIABLES: tuple[Variable, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Variable))
"""All variables, as the documentation lists them."""


# compute-sanitizer sets a variable with the first prefix for the program that it runs (seen in versions 2022 to 2025).
# Variables with the second prefix load other tools: CUDA driver API, "Injection".
_TOOLS = ("NV_SANITIZER_INJECTION_", "CUDA_INJECTION64_PATH")


def is_watched() -> bool:
    """Return True if a tool that may slow kernels down, such as compute-sanitizer, is loaded into this process."""
    return any(name.startswith(_TOOLS) for name in os.environ)


def cache_dir() -> Path:
    """Return the directory for compiled kernels, without creating it."""
    try:
        if CACHE_DIR.get():
            return Path(CACHE_DIR.get()).expanduser()
        return Path(XDG_CACHE_HOME.get() or Path.home() / ".cache") / "vpps"
    except RuntimeError:  # the user has no home directory, as in some containers
        return Path(tempfile.gettempdir()) / f"vpps-cache-{os.getuid()}"


_quiet = False


def leave_notices_to_others(quiet: bool) -> None:
    """Silence this process's notices if another process that does the same work prints them."""
    global _quiet
    _quiet = quiet


@cache
def notice(text: str) -> None:
    """Print a notice on standard error, once per process, unless VPPS_LOG is set."""
    logging.getLogger("vpps").info("%s", text)
    if LOG.get() or _quiet or sys.stderr is None:
        return
    with suppress(OSError, ValueError):  # standard error is closed or unread: the caller need not know
        print(f"vpps: {text}", file=sys.stderr, flush=True)


def start_logging() -> None:
    """Log messages of at least the level in VPPS_LOG to standard error, unless the program sets up `logging` itself.

    Called when vpps is imported.
    """
    name = LOG.get()
    if not name:
        return
    level = logging.getLevelNamesMapping().get(name.upper())
    if level is None:
        warnings.warn(f"{LOG.name}={name}: expected debug, info, warning or error", stacklevel=2)
        return
    logger = logging.getLogger("vpps")
    logger.setLevel(level)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s", "%H:%M:%S"))
    handler.addFilter(lambda record: not logging.getLogger().handlers)
    logger.addHandler(handler)


def search_path() -> str:
    """Return the folders in which the system looks for programs."""
    return os.environ.get("PATH", os.defpath)


def refuse_subinterpreters() -> None:
    """Raise ImportError in a subinterpreter: NumPy and the compiled recorder can be loaded only once per process."""
    with suppress(ModuleNotFoundError):
        interpreters = import_module("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
        if interpreters.get_current() != interpreters.get_main():
            raise ImportError(
                "vpps cannot be used in a subinterpreter: like NumPy, it can be loaded once per process. Import it in "
                "the main interpreter; with mod_wsgi set WSGIApplicationGroup %{GLOBAL}"
            )


refuse_subinterpreters()  # before NumPy is imported
