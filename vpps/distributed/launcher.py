"""Detects the launcher of this process, and creates the world."""

from __future__ import annotations

import math
import os
from typing import Any

from vpps.config import OPEN_MPI_TASKS, PMI_TASKS, SLURM_TASKS
from vpps.distributed.transports import Transport
from vpps.distributed.world import World
from vpps.errors import DistributedError
from vpps.values import as_count, as_flag, as_number

MPI_VARIABLES = ("PMI_SIZE", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE")
"""Environment variables of MPICH and Intel MPI (PMI), Open MPI and PMIx."""

TASKS = (PMI_TASKS, OPEN_MPI_TASKS, SLURM_TASKS)
"""Variables with a launcher's number of processes, the most specific one first."""

TORCH_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables of torchrun."""

BACKENDS = ("mpi", "torch", "alone")


def launcher() -> str:
    """Return the backend for the launcher of this process; "alone" if there is no launcher.

    Raises:
        DistributedError: srun started this process without a way for its processes to find each other.
    """
    if all(name in os.environ for name in TORCH_VARIABLES):
        return "torch"
    if any(name in os.environ for name in MPI_VARIABLES):
        return "mpi"
    if SLURM_TASKS.get() != "1":
        raise DistributedError(
            "srun started this process without telling it of the others: use srun --mpi=pmi2 (MPICH, as vpps[mpi] "
            "brings it) or --mpi=pmix (Open MPI), whichever srun --mpi=list has, or init(backend='alone')"
        )
    return "alone"


def init(
    backend: Any = None,
    *,
    shards: int | None = None,
    timeout: float = 300.0,
    check_every: int = 200,
    bind: bool = True,
) -> World:
    """Join the processes that train together. Each of them calls this once.

        mpiexec -n 8 python train.py
        torchrun --nproc-per-node 8 train.py

    On target cuda, the ranks on a machine are assigned its GPUs in turn, among those that CUDA_VISIBLE_DEVICES shows.
    Gradients go from GPU to GPU through PyTorch's NCCL if each rank has its own GPU. This requires torchrun, or a
    process group as `backend` that uses NCCL for GPU tensors. Otherwise gradients go through host memory.

    Args:
        backend: "mpi" (mpi4py), "torch" (gloo), "alone", an `mpi4py.MPI.Comm` or a `torch.distributed.ProcessGroup`
            (`group.WORLD` only once the program has initialized it). Default: the backend of the launcher, or "alone".
        shards: number of parts into which every mini-batch is divided, a multiple of the number of ranks (default: one
            per rank). Training gives the same bits with any number of ranks that divides `shards`.
        timeout: seconds that a rank may be later than the others before all ranks end.
        check_every: number of steps after which all ranks compare their weights.
        bind: True to give each rank its own part of the cores if ranks share the cores of a machine.

    Raises:
        DistributedError: a package that the backend needs is missing, or an argument is wrong.
    """
    if shards is not None:
        shards = as_count(shards, "init: shards", DistributedError)
    check_every = as_count(check_every, "init: check_every", DistributedError)
    bind, seconds = as_flag(bind, "init: bind", DistributedError), as_number(timeout)
    if seconds is None or not 0 < seconds < math.inf:
        raise DistributedError(f"init(timeout={timeout!r}): expected seconds, a positive number")
    return World(_transport(launcher() if backend is None else backend, seconds), shards, seconds, check_every, bind)


def _transport(backend: Any, timeout: float) -> Transport | None:
    name, given = backend, None
    if not isinstance(backend, str):
        packages = {kind.__module__.partition(".")[0] for kind in type(backend).__mro__}
        name, given = "mpi" if "mpi4py" in packages else "torch" if "torch" in packages else "", backend
    if name == "mpi":
        return _mpi(given, timeout)
    if name == "torch":
        from vpps.distributed.transports.process_group import ProcessGroupTransport

        return ProcessGroupTransport(given, timeout)
    if name == "alone":
        return None
    raise DistributedError(
        f"init(backend={backend!r}): expected one of {', '.join(BACKENDS)}, an mpi4py.MPI.Comm or a "
        "torch.distributed.ProcessGroup"
    )


def _mpi(comm: Any, timeout: float) -> Transport:
    from vpps.distributed.transports.mpi import MpiTransport

    transport = MpiTransport(comm, timeout)
    told = int(next((tasks for tasks in TASKS if tasks.name in os.environ), SLURM_TASKS).get())
    if comm is None and transport.size == 1 < told:
        raise DistributedError(
            f"init: {told} processes were started together, but {transport.library} does not understand their "
            "launcher, and each would train alone: use the mpiexec of that library; with srun --mpi=pmi2 for MPICH, "
            "--mpi=pmix for Open MPI"
        )
    return transport
