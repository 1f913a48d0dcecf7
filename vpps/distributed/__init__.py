"""Data-parallel training: every process has all weights, and computes its part of every mini-batch.

    world = vpps.distributed.init()  # under mpiexec, srun or torchrun; otherwise a single process
    handle = vpps.Handle(model, optimizer, world=world)
    for batch in trees.batches(64, world=world): ...

launcher: detects the program that started the processes. world: communication between ranks, and the end of all ranks
after a failure. transports: MPI and torch.distributed. `vpps.session.data_parallel` runs the training steps, and
`vpps.data.graphbatch` divides mini-batches among ranks.
"""

from vpps.distributed.launcher import init
from vpps.distributed.world import World

__all__ = ["World", "init"]
__dir__ = __all__.copy  # completion shows nothing else
