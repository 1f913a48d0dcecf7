"""Inspection: shows what a handle would compile and launch for a graph. Nothing runs, and no GPU is needed."""

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
    """A graph, planned for one configuration of a kernel; `vpps.report.inspect` and `Handle.inspect` return it.

    Its texts are named after the `vpps-inspect` commands. A trace needs launches, so `Handle.trace` records it.

    Attributes:
        target: name of the target.
        arch: "sm_90" on cuda, the instruction set on cpu ("avx512"), "" on simt.
        planner: the planner that made the plan, with its data on cells.
        graph_made: the planned graph.
        plan_made: the plan.
        spec: required features of the kernel.
        arrangement: placement of weights on the chip.
        kernel: the kernel that was compiled with the plan; if None, `compiled` compiles it.
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
        """A drawing of the graph."""
        return draw(self.graph_made)

    @cached_property
    def plan(self) -> PlanReport:
        """The report on levels, stages, steps, barriers, memory and lists."""
        return PlanReport(self.plan_made, self.planner)

    @property
    def script(self) -> str:
        """The instructions of every virtual processor."""
        return script_text(self.plan_made)

    @property
    def cell(self) -> str:
        """The report on each cell before and after every pass of the cell compiler."""
        return cells_text(self.plan_made, self.planner)

    def source(self, named: bool = False) -> str:
        """Return the source of the kernel, as passed to the compiler.

        Args:
            named: include the headers by name, not as text; the remaining text depends on the model (cuda, simt).
        """
        if not self._row.is_gpu:
            return cpu_source(named, self.spec.rounds)
        if self.kernel is not None and not named:
            return Text(self.kernel.source)
        return Text(self._row.render(self.spec.made_for(self.target, self.planner.distribution.all_vps), named))

    def tails(self) -> str:
        """Return the source of the tails, the fused code of the graph's cells: a separate library on the cpu target.

        Raises:
            HandleError: there are no tails, or the target includes them in its kernel.
        """
        if self._row.is_gpu:
            raise HandleError(f"tails: target {self.target!r} has them in the kernel; look at its source")
        if not self.spec.tails:
            raise HandleError("tails: the cells of this graph have none: nothing in them is fused")
        return Text(render_tails(tuple(self.spec.tails), tile_of_machine()))

    def asm(self, tails: bool = False) -> str:
        """Return the assembly code of the compiled kernel, or of its tails, on the cpu target.

        Raises:
            HandleError: the target is not cpu, or there are no tails.
            CompileError: the compiler or objdump is missing.
        """
        if "asm" not in self._row.listings:
            raise HandleError(f"asm: target {self.target!r} is not a host processor; look at its ptx or sass")
        if not tails:
            return cpu_asm(self.spec.rounds)
        self.tails()
        return listing.asm(build_tails(tuple(self.spec.tails)))

    def ptx(self) -> str:
        """Return the intermediate code of the kernel (cuda); `.loc` gives lines of `source()`.

        Raises:
            HandleError: the target is another one.
            CompileError: NVRTC is missing or fails.
        """
        self._check_shows("ptx")
        return listing.ptx(self.source(), self.arch)

    def sass(self) -> str:
        """Return the machine code of the kernel (cuda); comments give lines of `source()`.

        The kernel is compiled again, because kernels that run have no line information. The instructions are the same.

        Raises:
            HandleError: the target is another one.
            CompileError: NVRTC or nvdisasm is missing or fails.
        """
        self._check_shows("sass")
        chip = self.compiled.spec.chip
        return listing.sass(listing.cubin_with_lines(self.compiled.source, self.arch, chip.registers))

    def _check_shows(self, what: str) -> None:
        if what not in self._row.listings:
            raise HandleError(f"{what}: target {self.target!r} has none; use target 'cuda', such as with arch='sm_90'")

    @property
    def resources(self) -> str:
        """The resources of the compiled kernel. Raises CompileError if the compiler is missing or fails."""
        return kernels_text([self.compiled])

    @cached_property
    def compiled(self) -> Specialized:
        """The compiled kernel; the first access compiles it if needed. Raises CompileError if compilation fails."""
        if self.kernel is not None:
            return self.kernel
        parameters = self.planner.distribution
        return compile_planned(self.target, self.arch, self.spec, self.arrangement, parameters)


def cpu_source(named: bool = False, rounds: bool = False) -> str:
    """Return the source of the cpu target's kernel, which all models share.

    Args:
        named: include the headers by name, not as text.
        rounds: True if products may round their operands.
    """
    return Text(render_cpu(tile_of_machine(), named, rounds))


def cpu_asm(rounds: bool = False) -> str:
    """Return the cpu target's kernel in assembly code. Raises CompileError if the compiler or objdump is missing."""
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
    """Plan a graph like a handle, without a launch.

    Args:
        model: model with the parameters; their weights do not matter.
        example: a graph and its loss.
        target: name of the target.
        arch, device, sms: properties of a GPU, which this machine need not have; see `vpps.specialize`. The default is
            this machine's GPU, if any.
        configuration: virtual processors, policy, schedule, distribution on the chip, passes; default: as in `Handle`.
        train: False for inference only.
        optimizer: default `SGD`.
        clip_norm: bound on the gradients' norm, or None.
        compiled: also compile the kernel. If a GPU kernel spills, it is compiled again with less on the chip. Without
            compilation, the inspection shows the first attempt.

    Raises:
        HandleError, GraphError, CapacityError: an argument is wrong, or a placement that it forces does not fit.
        CompileError: `compiled` is True and a compiler is missing or fails.
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
    """Return the instruction set and the placement of the parameters."""
    tile = tile_of_machine()
    vps = default_vps(usable_cores(), update is not None) if chosen.vps is None else chosen.vps
    stacks = stacks_of(model, graph, update, chosen.passes, tile.panel, chosen.apart)
    moments = len(update.optimizer.moments) if update is not None else 0
    parameters = Distribution(
        model, vps, tile.panel, moments, update is not None, stacks=stacks, precisions=chosen.precision
    )
    return tile.isa, parameters
