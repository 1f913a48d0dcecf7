"""What is tuned: a model with an example, and what its configurations need compiled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from vpps.compiler.arrangement import Arrangement, matrices_of
from vpps.compiler.passes.stacking import Stacking
from vpps.engine.ahead import example_plan, specs
from vpps.engine.configuration import Configuration
from vpps.engine.options import Example
from vpps.errors import VppsError
from vpps.kernel.spec import KernelSpec
from vpps.model.model import Model
from vpps.model.optim import SGD, Optimizer
from vpps.placement.distribution import Distribution
from vpps.placement.onchip import Device
from vpps.placement.stacks import Stacks
from vpps.placement.update import Update
from vpps.planner.planner import Planner
from vpps.planner.policies import Knowledge, policy_named
from vpps.targets import CPU
from vpps.tuning.automata import AutomatonFiles
from vpps.tuning.candidates import TunedChip
from vpps.tuning.jobs import CpuJob


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
        clip_norm: bound of the gradients' norm in training: clipping takes instructions.
        knowledge: machines of policy `fsm`, so that what a candidate learns the others find.
    """

    model: Model
    example: Example
    optimizer: Optimizer | None = None
    base: Configuration = Configuration()  # noqa: RUF009 - frozen
    train: bool = True
    at_once: int | None = None
    clip_norm: float | None = None
    knowledge: Knowledge = field(default_factory=lambda: Knowledge(kept=AutomatonFiles()))

    @property
    def update(self) -> Update | None:
        """What a step of training does."""
        return Update(self._rule, 1, 1, self.clip_norm) if self.train else None

    @property
    def moments(self) -> int:
        """Arrays that the optimizer keeps beside each parameter."""
        return len(self._rule.moments) if self.train else 0

    @property
    def _rule(self) -> Optimizer:
        return SGD(lr=0.1) if self.optimizer is None else self.optimizer

    def stacks(self, configuration: Configuration, panel: int) -> Stacks:
        """The parameters that are stacked."""
        stacking = Stacking(self.model, configuration.passes, panel, configuration.apart)
        stacking.see(self.example[0].blocks, self._rule)
        return stacking.stacks

    def chip(self, device: Device) -> TunedChip:
        """What candidates for a GPU depend on."""
        stacks = self.stacks(self.base, 1)
        matrices = matrices_of(self.example[0].blocks, self.base.passes, stacks, self.base.precision)
        specs = [m if self.train else replace(m, role_t_parts=0, trained=False) for m in matrices.values()]
        return TunedChip(tuple(specs), device, self.base.vps, self.train)

    def planner(self, configuration: Configuration, parameters: Distribution) -> Planner:
        """What plans with a configuration and these places of the parameters."""
        policy = policy_named(configuration.policy, self.knowledge)
        return Planner(parameters, policy, configuration.schedule, configuration.passes)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How kernels of a subject are compiled for a GPU.

    Attributes:
        subject: what is tuned.
        target: name of one that is a GPU.
        device: the GPU.
        arch: to compile for, such as "sm_90"; "" for the emulator.
        vps: blocks of all groups; None for all that run side by side.
    """

    subject: Subject
    target: str
    device: Device
    arch: str
    vps: int | None

    def blocks(self, configuration: Configuration) -> int:
        """Of a group."""
        options = configuration.onchip
        total = self.device.sms * (options.blocks_per_sm or 1) if self.vps is None else self.vps
        return total // options.groups

    def specs(self, configuration: Configuration) -> Iterator[tuple[KernelSpec, Arrangement, Distribution]]:
        """Kernels for a candidate, best first. Raises HandleError, CapacityError, SpillError."""
        subject = self.subject
        return specs(
            subject.model, subject.example, self.device, self.blocks(configuration), subject.update, subject.moments,
            configuration.onchip, configuration.schedule, configuration.passes, evaluates=False,
            precisions=configuration.precision,
        )  # fmt: skip

    def barriers(self, configuration: Configuration, parameters: Distribution) -> int:
        """Of a launch of the example."""
        planner, (graph, loss) = self.subject.planner(configuration, parameters), self.subject.example
        if self.subject.update is None:
            return planner.plan_forward(graph, [loss]).n_barriers
        return planner.plan_training(graph, loss, self.subject.update, 0).n_barriers


def cpu_job(subject: Subject, configuration: Configuration) -> tuple[CpuJob | None, str]:
    """What a configuration needs compiled, or why it cannot be had."""
    from vpps.kernel.host_compiler import tile_of_machine

    configuration = configuration.on(CPU.name)
    usual, tile = tile_of_machine(), tile_of_machine(configuration.tile)
    stacks = subject.stacks(configuration, tile.panel)
    if not stacks.same_as(subject.stacks(configuration, usual.panel)):
        return None, (
            f"with panels of {tile.panel} rows other matrices are stacked than with {usual.panel}, so sums would run "
            "in another order"
        )
    try:
        parameters = Distribution(
            subject.model, configuration.vps or 1, tile.panel, subject.moments, subject.train, stacks=stacks,
            precisions=configuration.precision,
        )  # fmt: skip
        plan = example_plan(subject.planner(configuration, parameters), *subject.example, subject.update, False)
    except VppsError as error:
        return None, str(error)
    tails = tuple(sorted(plan.tails, key=lambda tail: tail.number))
    return CpuJob(configuration.tile, tails, configuration.precision.is_reduced), ""
