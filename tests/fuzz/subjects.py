"""Scripts of several kinds that the verifier accepts, each with the emulated machine for which it was made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import vpps
from tests.simt import models
from tests.simt.models import Network
from vpps.placement.onchip import ChipOptions
from vpps.runtime.simt import SimtMachine
from vpps.script.disassemble import Words
from vpps.script.footprint import MemoryMap
from vpps.script.verify import verify

GUARD = 1 << 16  # words around each array, so that near misses hit no other array


@dataclass(frozen=True)
class Recipe:
    """The settings that make a script.

    Attributes:
        network: the model.
        vps: virtual processors.
        train: True for a step of training.
        options: options of the handle.
    """

    network: Callable[[], Network]
    vps: int
    train: bool = True
    options: dict[str, Any] = field(default_factory=dict)


def _tree(dropout: float = 0.0) -> Network:
    return models.tree_lstm(dropout=dropout, leaves=(1,))


def _lists() -> Network:
    return models.child_sum(sizes=(4,))


def _attention() -> Network:
    return models.attention(lengths=(0, 3))


def _several_cells() -> Network:
    return models.tagger(lengths=(2,))


def _layers() -> Network:
    return models.layers((100, 33), (30, 40), n=2)


FUSED = {"passes": vpps.Passes()}
EXCLUSIVE = {"schedule": "paper"}
ALL_IN_MEMORY = ChipOptions(tiers={f"W{k}{t}": "L2" for k in range(2) for t in ("", "^T")})
IN_TURNS = ChipOptions(ownership="round-robin", rpw=1)

RECIPES: dict[str, Recipe] = {
    "tree": Recipe(_tree, 2),
    "tree, exclusive": Recipe(_tree, 2, options=EXCLUSIVE),
    "tree, fused": Recipe(_tree, 3, options=FUSED),
    "tree, fused, exclusive": Recipe(_tree, 2, options={**FUSED, **EXCLUSIVE}),
    "tree, inference": Recipe(_tree, 3, train=False, options=FUSED),
    "tree, alone": Recipe(_tree, 1, options=FUSED),
    "dropout, Adam": Recipe(lambda: _tree(0.3), 2, options={"optimizer": vpps.Adam(), "ema": 0.9}),
    "lists": Recipe(_lists, 2),
    "lists, fused": Recipe(_lists, 3, options=FUSED),
    "lists, inference": Recipe(_lists, 2, train=False),
    "attention": Recipe(_attention, 2),
    "attention, exclusive": Recipe(_attention, 3, options=EXCLUSIVE),
    "several cells": Recipe(_several_cells, 2),
    "several cells by depth": Recipe(_several_cells, 2, options={"policy": "depth", **EXCLUSIVE}),
    "matrices": Recipe(lambda: models.mv_rnn(lengths=(2,)), 2),
    "weights in memory": Recipe(_layers, 3, options={"onchip": ALL_IN_MEMORY}),
    "in turns": Recipe(_layers, 6, options={"onchip": IN_TURNS}),
    "groups": Recipe(_several_cells, 4, options={"onchip": ChipOptions(groups=2)}),
}


@dataclass
class Subject:
    """A script, the memory it may use, and a machine whose kernel runs it.

    Attributes:
        pool: contents before a launch; memory that the script must not read is NaN.
        exact: True if launches give the same bits for every thread order: no atomic additions.
    """

    name: str
    handle: vpps.Handle
    machine: SimtMachine
    script: Words
    layout: MemoryMap
    origin: Callable[[int], str]
    pool: NDArray[np.float32]
    exact: bool

    @staticmethod
    def make(name: str) -> Subject:
        """Return a recipe's script, after a successful launch."""
        recipe = RECIPES[name]
        network = recipe.network()
        options = {"optimizer": vpps.SGD(lr=0.1), "passes": vpps.Passes(fusion=False), **recipe.options}
        if recipe.train and not {"ema", "onchip"} & set(options):
            options["clip_norm"] = 0.1
        handle = vpps.Handle(network.model, target="simt", vps=recipe.vps, train=recipe.train, verify=True, **options)
        graph, loss = network.batch(0)
        if recipe.train:
            handle.fb(graph, loss)
            handle.sync_get_latest_loss()
        else:
            handle.forward(graph, [loss])
        plan, machine = handle._engine.plan, handle._engine.machine
        assert plan is not None
        assert isinstance(machine, SimtMachine)
        verify(plan.script, plan.layout, plan.origin)
        pool = machine.pool[: plan.pool_floats].copy()
        for start, stop in plan.layout.unwritten:
            pool[start:stop] = np.nan
        machine._counters = np.stack([guarded(row) for row in machine._counters])[:, GUARD:-GUARD]
        machine.pool = guarded(pool)[GUARD:-GUARD]
        exact = not plan.instructions & {"matvec_transposed"}
        return Subject(name, handle, machine, plan.script.copy(), plan.layout, plan.origin, pool, exact)


def guarded(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy surrounded by zeros."""
    return np.pad(array, GUARD)
