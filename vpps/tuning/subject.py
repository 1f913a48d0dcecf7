"""What is tuned: a model with an example, and what its configurations need compiled."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from vpps.compiler.arrangement import matrices_of
from vpps.compiler.passes.stacking import Stacking
from vpps.engine.ahead import example_plan
from vpps.engine.configuration import Configuration
from vpps.engine.options import Example
from vpps.errors import VppsError
from vpps.model.model import Model
from vpps.model.optim import SGD, Optimizer
from vpps.placement.distribution import Distribution
from vpps.placement.onchip import Device
from vpps.placement.stacks import Stacks
from vpps.placement.update import Update
from vpps.planner.planner import Planner
from vpps.planner.policies import Knowledge, policy_named
from vpps.tuning.candidates import TunedChip
from vpps.tuning.compiling import Recipe
from vpps.tuning.jobs import CpuJob
from vpps.tuning.machines import MachineFiles


@dataclass(frozen=True, slots=True)
class Subject:
    """What is tuned.

    Attributes:
        model: its weights are copied, never changed.
        example: a typical graph and its loss.
        optimizer: of training.
        base: what the user forces; tuning changes the rest.
        train: for training, or for evaluation.
        at_once: compilers that run side by side; None for one per core.
        knowledge: machines of policy `fsm`, so that what a candidate learns the others find.
    """

    model: Model
    example: Example
    optimizer: Optimizer | None = None
    base: Configuration = Configuration()  # noqa: RUF009 - frozen
    train: bool = True
    at_once: int | None = None
    knowledge: Knowledge = field(default_factory=lambda: Knowledge(kept=MachineFiles()))

    @property
    def update(self) -> Update | None:
        """What a step of training does."""
        return Update(self._rule, 1, 1, None) if self.train else None

    @property
    def moments(self) -> int:
        """Arrays that the optimizer keeps beside each parameter."""
        return len(self._rule.moments) if self.train else 0

    @property
    def _rule(self) -> Optimizer:
        return SGD(lr=0.1) if self.optimizer is None else self.optimizer

    def stacks(self, configuration: Configuration, panel: int) -> Stacks:
        """The parameters that are stacked."""
        stacking = Stacking(self.model, configuration.passes, panel, configuration.onchip.tiers)
        stacking.see(self.example[0].blocks, self._rule)
        return stacking.stacks

    def chip(self, device: Device) -> TunedChip:
        """What candidates for a GPU depend on."""
        matrices = matrices_of(self.example[0].blocks, self.base.passes, self.stacks(self.base, 1))
        specs = [m if self.train else replace(m, role_t_parts=0, trained=False) for m in matrices.values()]
        return TunedChip(tuple(specs), device, self.base.vps, self.train)

    def recipe(self, target: str, device: Device, arch: str) -> Recipe:
        """How kernels are compiled for a GPU; `arch` is "" for the emulator."""
        return Recipe(
            self.model, self.example, self.update, self.moments, target, device, arch, self.base.vps, self.knowledge
        )


def cpu_job(subject: Subject, configuration: Configuration) -> tuple[CpuJob | None, str]:
    """What a configuration needs compiled, or why it cannot be had."""
    from vpps.kernel.host_compiler import tile_of_machine

    usual, tile = tile_of_machine(), tile_of_machine(configuration.tile)
    stacks = subject.stacks(configuration, tile.panel)
    if not stacks.same_as(subject.stacks(configuration, usual.panel)):
        return None, (
            f"with panels of {tile.panel} rows other matrices are stacked than with {usual.panel}, so sums would run "
            "in another order"
        )
    try:
        parameters = Distribution(
            subject.model, configuration.vps or 1, tile.panel, subject.moments, subject.train, stacks=stacks
        )
        policy = policy_named(configuration.policy, subject.knowledge)
        planner = Planner(parameters, policy, configuration.schedule, configuration.passes)
        plan = example_plan(planner, *subject.example, subject.update)
    except VppsError as error:
        return None, str(error)
    return CpuJob(configuration.tile, tuple(sorted(plan.tails, key=lambda tail: tail.number))), ""
