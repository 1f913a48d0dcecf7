"""What `Handle(autotune=True)` tries: the axes of its machine, and how their kernels are compiled in the background."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vpps.engine.configuration import Configuration
from vpps.engine.engine import Engine
from vpps.engine.options import Example
from vpps.model.model import Model
from vpps.model.optim import Optimizer
from vpps.placement.onchip import Device
from vpps.placement.onchip.holding import TILES, valid_rpws
from vpps.tuning.candidates import POLICIES, Change
from vpps.tuning.compiling import Compilers
from vpps.tuning.model_copy import ModelCopy
from vpps.tuning.online import Axis, Background, OnlineTuner
from vpps.tuning.subject import Recipe, Subject, cpu_job

NICENESS = 10
"""Of compilers: training goes first, they take what it leaves."""


def tuner_for(
    model: Model, engine: Engine, example: Example, optimizer: Optimizer, clip_norm: float | None,
    chosen: Mapping[str, Any],
) -> OnlineTuner:  # fmt: skip
    """A tuner for a handle that is about to train its first batch.

    Args:
        model, engine: of the handle.
        example: the batch: a graph and its loss.
        optimizer, clip_norm: of the handle.
        chosen: fields of the configuration that the user chose, which stay as they are.
    """
    # A copy, so that what is planned in the background shares nothing with what is planned meanwhile for training.
    copied = ModelCopy(model, {p.name: p.host for p in model})
    subject = Subject(copied.model, copied.of(*example), optimizer, engine.configuration, clip_norm=clip_norm)
    device = engine.machine.device
    compilers = Compilers(1, NICENESS)
    if device is None:
        axes = cpu_axes(engine.machine.vps)
        compile = _cpu_compiler(subject, compilers)
    else:
        axes = gpu_axes(subject, device, engine.configuration, chosen)
        compile = _gpu_compiler(subject, compilers, engine, device)
    free = [axis for axis in axes if not any(name in chosen for change in axis.changes for name in change)]
    return OnlineTuner(engine.configuration, free, Background(compile, compilers.end))


def cpu_axes(vps: int) -> list[Axis]:
    """Fewer virtual processors and more than so many, other tiles of products: what leaves every bit as it is. A policy
    is the user's to choose, because it decides in which order gradients are summed."""
    from vpps.kernel.host_compiler import tile_of_machine
    from vpps.kernel.render import tiles_of
    from vpps.runtime.cores import usable_cores

    tiles = tiles_of(tile_of_machine().isa)[1:]
    return [
        Axis("fewer virtual processors", tuple({"vps": n} for n in range(vps - 1, 0, -1)), ordered=True),
        Axis("more virtual processors", tuple({"vps": n} for n in range(vps + 1, usable_cores() + 1)), ordered=True),
        Axis("tile", tuple({"tile": tile.name} for tile in tiles), ordered=False),
    ]


def gpu_axes(subject: Subject, device: Device, base: Configuration, chosen: Mapping[str, Any]) -> list[Axis]:
    """Groups of blocks that hold all weights each, so that fewer blocks read a vector; slots that follow hidden units
    with fewer vertices at a time; rows per warp in turns as VPPS has them, more until it gets worse; other policies.

    Rows in turns, with which VPPS begins, reached 0.73 of the speed of what the planner chooses on an H100; two groups
    0.8 to 1.2 of it, by model and batch."""
    policies = Axis("policy", tuple(POLICIES), ordered=False)
    if "onchip" in chosen:
        return [policies]
    turns: list[Change] = [
        {"onchip": {"ownership": "round-robin", "rpw": rpw, "tile": None}}
        for rpw in valid_rpws(subject.chip(device).planned(base.onchip).held, device.registers(1))
    ]
    return [
        Axis("groups", tuple({"onchip": {"groups": n}} for n in (2, 4) if not (base.vps or 0) % n), ordered=True),
        Axis("aligned slots", tuple({"onchip": {"tile": tile}} for tile in TILES), ordered=False),
        Axis("rows per warp", tuple(turns), ordered=True),
        policies,
    ]


def _cpu_compiler(subject: Subject, compilers: Compilers) -> Callable[[Configuration], str]:
    def compile(configuration: Configuration) -> str:
        job, reason = cpu_job(subject, configuration)
        if job is not None:
            compilers.run(job)
        return reason

    return compile


def _gpu_compiler(
    subject: Subject, compilers: Compilers, engine: Engine, device: Device
) -> Callable[[Configuration], str]:
    machine = engine.machine
    recipe = Recipe(subject, machine.target, device, machine.arch, machine.vps)

    def compile(configuration: Configuration) -> str:
        return compilers.candidate(recipe, configuration).reason

    return compile
