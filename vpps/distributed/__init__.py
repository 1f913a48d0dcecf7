"""Data-parallel training: every process has all weights, and computes its part of every mini-batch.

    world = vpps.distributed.init()  # mpiexec, srun or torchrun started it; else it is alone
    handle = vpps.Handle(model, optimizer, world=world)
    for batch in trees.batches(64, world=world): ...

launcher: who started this process; world: what ranks say to each other, and how they end; transports: what carries
bytes. Steps are made by `vpps.session.data_parallel`, divided among ranks by `vpps.data.graphbatch`.
"""

from vpps.distributed.launcher import init
from vpps.distributed.world import World

__all__ = ["World", "init"]
__dir__ = __all__.copy  # completion shows nothing else
