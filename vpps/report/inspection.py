"""Inspection: what a handle would compile and launch for a graph, to be looked at; nothing runs, no GPU is needed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from vpps.compiler.arrangement import NO_CHIP, Arrangement
from vpps.engine.ahead import Specialized, compile_planned, fitting, gpu_for, specs, stacks_of
from vpps.engine.configuration import Configuration
from vpps.engine.options import Example, check_example, check_option, check_precision, check_precision_of
from vpps.errors import HandleError
from vpps.graph.drawing import Drawing, draw
from vpps.graph.graph import Graph
from vpps.kernel.host_compiler import build_cpu, build_tails, tile_of_machine
from vpps.kernel.render import render_cpu, render_tails
from vpps.kernel.spec import KernelSpec
from vpps.model.model import Model
from vpps.model.optim import SGD, Optimizer
from vpps.ops.philox import StepKey
from vpps.placement.distribution import Distribution
from vpps.placement.onchip import Device
from vpps.placement.update import Update
from vpps.planner.plan import Plan
from vpps.planner.planner import Planner
from vpps.report import listing
from vpps.report.cells import cells_text
from vpps.report.kernel_report import kernels_text
from vpps.report.plan_report import PlanReport
from vpps.report.script_report import script_text
from vpps.runtime.cores import default_vps, usable_cores
from vpps.targets import CPU, TARGETS, Target, target_named
from vpps.text import Text, counted


@dataclass(frozen=True, repr=False)
class Inspection:
    """A graph in one configuration of a kernel; made by `vpps.report.inspect` or `Handle.inspect`.

    It gives text by the names of the commands of `vpps-inspect`; a trace comes from `Handle.trace`, as it takes
    launches.

    Attributes:
        target: its name.
        arch: "sm_90"; of cpu the instruction set ("avx512"); "" of simt.
        planner: has made the plan, and keeps what it knows of cells.
        graph_made: what is planned.
        plan_made: the plan itself.
        spec: what the kernel must be able to do.
        arrangement: what of the weights is on the chip.
        kernel: where it was compiled with the plan; None: it is when something asks for it.
    """

    target: str
    arch: str
    planner: Planner
    graph_made: Graph
    plan_made: Plan
    spec: KernelSpec
    arrangement: Arrangement
    kernel: Specialized | None = None

    def __repr__(self) -> str:
        vps = counted(self.planner.distribution.all_vps, "virtual processor")
        vertices = counted(self.graph_made.n_calls, "vertex", "vertices")
        compiled = [f".{what}()" for what in self._row.listings]
        shows = [".graph", ".plan", ".script", ".cell", ".source()", *compiled, ".resources"]
        return f"<Inspection of {vertices} on {f'{self.target} {self.arch}'.strip()}, {vps}: {' '.join(shows)}>"

    @property
    def _row(self) -> Target:
        return TARGETS[self.target]

    @property
    def graph(self) -> Drawing:
        """The graph, to be drawn."""
        return draw(self.graph_made)

    @cached_property
    def plan(self) -> PlanReport:
        """Levels, stages, steps, barriers, memory, lists."""
        return PlanReport(self.plan_made, self.planner)

    @property
    def script(self) -> str:
        """The instructions of every virtual processor."""
        return script_text(self.plan_made)

    @property
    def cell(self) -> str:
        """Each cell before and after every pass of the cell compiler."""
        return cells_text(self.plan_made, self.planner)

    def source(self, named: bool = False) -> str:
        """Source of the kernel: what the compiler gets.

        Args:
            named: name the headers instead of putting their text in; what is left depends on the model (cuda, simt).
        """
        if not self._row.is_gpu:
            return cpu_source(named, self.spec.rounds)
        if self.kernel is not None and not named:
            return Text(self.kernel.source)
        return Text(self._row.render(self.spec.made_for(self.target, self.planner.distribution.all_vps), named))

    def tails(self) -> str:
        """Source of what the cells of the graph add to the kernel of the cpu target: a library of its own.

        Raises:
            HandleError: another target, whose kernel has them in it, or there are none.
        """
        if self._row.is_gpu:
            raise HandleError(f"tails: target {self.target!r} has them in the kernel; look at its source")
        if not self.spec.tails:
            raise HandleError("tails: the cells of this graph have none: nothing in them is fused")
        return Text(render_tails(tuple(self.spec.tails), tile_of_machine()))

    def asm(self, tails: bool = False) -> str:
        """Assembler of the compiled kernel, or of its tails, on the cpu target.

        Raises:
            HandleError: another target, or there are no tails.
            CompileError: there is no compiler, or no objdump.
        """
        if "asm" not in self._row.listings:
            raise HandleError(f"asm: target {self.target!r} is no processor of the host; look at its ptx or sass")
        if not tails:
            return cpu_asm(self.spec.rounds)
        self.tails()
        return listing.asm(build_tails(tuple(self.spec.tails)))

    def ptx(self) -> str:
        """Intermediate code of the kernel (cuda). Raises HandleError for another target, CompileError."""
        self._check_shows("ptx")
        return listing.ptx(self.source(), self.arch)

    def sass(self) -> str:
        """Machine code of the compiled kernel (cuda). Raises HandleError for another target, CompileError."""
        self._check_shows("sass")
        return listing.sass(self.compiled.binary)

    def _check_shows(self, what: str) -> None:
        if what not in self._row.listings:
            raise HandleError(f"{what}: target {self.target!r} has none; use target 'cuda', such as with arch='sm_90'")

    @property
    def resources(self) -> str:
        """What the compiled kernel needs. Raises CompileError if a compiler is missing or cannot do it."""
        return kernels_text([self.compiled])

    @cached_property
    def compiled(self) -> Specialized:
        """The kernel, compiled now if it has not been. Raises CompileError if that cannot be."""
        if self.kernel is not None:
            return self.kernel
        parameters = self.planner.distribution
        return compile_planned(self.target, self.arch, self.spec, self.arrangement, parameters)


def cpu_source(named: bool = False, rounds: bool = False) -> str:
    """Source of the kernel of the cpu target, the same for all models.

    Args:
        named: name the headers instead of putting their text in.
        rounds: products may round what they multiply.
    """
    return Text(render_cpu(tile_of_machine(), named, rounds))


def cpu_asm(rounds: bool = False) -> str:
    """Assembler of the kernel of the cpu target. Raises CompileError if there is no compiler, or no objdump."""
    return listing.asm(build_cpu(rounds)[0])


def inspect(
    model: Model,
    example: Example,
    target: str = CPU.name,
    arch: str | None = None,
    *,
    device: str | Device | None = None,
    sms: int | None = None,
    configuration: Configuration | None = None,
    train: bool = True,
    optimizer: Optimizer | None = None,
    clip_norm: float | None = None,
    compiled: bool = False,
) -> Inspection:
    """Plan a graph as a handle would; launch nothing.

    Args:
        model: its parameters; the weights do not matter.
        example: a graph and its loss.
        target: its name.
        arch, device, sms: of a GPU that need not be there, see `vpps.specialize`; default: the one that is, if any.
        configuration: virtual processors, policy, schedule, distribution over the chip, passes; default: as a handle's.
        train: False for inference alone.
        optimizer: default `SGD`.
        clip_norm: bound of the gradients' norm, or None.
        compiled: have the kernel compiled, too. On a GPU what the chip holds may depend on that: of a kernel that
            spills, less. Without, it is what is tried first.

    Raises:
        HandleError, GraphError, CapacityError: an argument is wrong, or what it forces does not fit.
        CompileError: with `compiled`, that a compiler is missing or cannot do it.
    """
    if not isinstance(model, Model):
        raise HandleError(f"inspect({model!r}): expected a vpps.Model")
    graph, loss = check_example(example)
    row = target_named(target)
    chosen = (Configuration() if configuration is None else configuration).on(row.name)
    for name in ("policy", "schedule"):
        check_option(name, getattr(chosen, name))
    check_precision(chosen.precision, row.name)
    check_precision_of(model, chosen.precision)
    if row.has_archs and arch is None and device is None:
        device = row.device()
    rule = SGD(lr=0.1) if optimizer is None else optimizer
    update = Update(rule, 1, 1, clip_norm) if train else None
    kernel: Specialized | None = None
    if row.is_gpu:
        gpu, arch = gpu_for(target, device, arch, sms)
        arch = arch if row.has_archs else ""
        check_precision(chosen.precision, row.name, gpu)
        vps = gpu.sms if chosen.vps is None else chosen.vps
        moments = len(rule.moments) if train else 0
        found = specs(
            model, example, gpu, vps, update, moments, chosen.onchip, chosen.schedule,
            chosen.passes, precisions=chosen.precision,
        )  # fmt: skip
        kernel = fitting(target, arch, found) if compiled else None
        spec, arrangement, parameters = (
            next(found) if kernel is None else (kernel.spec, kernel.arrangement, kernel.parameters)
        )
    else:
        arrangement = NO_CHIP
        arch, parameters = _for_cpu(model, graph, chosen, update)
    planner = Planner(parameters, chosen.policy, chosen.schedule, chosen.passes)
    if update is None:
        plan = planner.plan_forward(graph, [loss])
    else:
        plan = planner.plan_training(graph, loss, update, 0, StepKey(model.seed, 1))
    if not row.is_gpu:
        spec = KernelSpec(plan.instructions, tails=plan.tails, rounds=chosen.precision.is_reduced)
    if compiled and kernel is None:
        kernel = compile_planned(target, arch, spec, arrangement, parameters)
    return Inspection(target, arch, planner, graph, plan, spec, arrangement, kernel)


def _for_cpu(model: Model, graph: Graph, chosen: Configuration, update: Update | None) -> tuple[str, Distribution]:
    """Instruction set, and places of the parameters."""
    tile = tile_of_machine()
    vps = default_vps(usable_cores(), update is not None) if chosen.vps is None else chosen.vps
    stacks = stacks_of(model, graph, update, chosen.passes, tile.panel, chosen.apart)
    moments = len(update.optimizer.moments) if update is not None else 0
    parameters = Distribution(
        model, vps, tile.panel, moments, update is not None, stacks=stacks, precisions=chosen.precision
    )
    return tile.isa, parameters
