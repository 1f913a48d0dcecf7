"""Compiles kernels ahead of time: `specialize` for any GPU, present or not, and an example graph for a handle."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from vpps.compiler.arrangement import NO_CHIP, Arrangement, arrangements, matrices_of
from vpps.compiler.passes import Passes
from vpps.compiler.passes.stacking import Stacking
from vpps.compiler.schedule import SCHEDULES
from vpps.engine.configuration import Configuration
from vpps.engine.explanation import explain_kernel
from vpps.engine.options import Example, check_example, check_option, check_precision, check_precision_of
from vpps.errors import HandleError, SpillError
from vpps.graph import functions
from vpps.graph.graph import Graph
from vpps.hints import ARGUMENTS
from vpps.kernel.resources import Resources
from vpps.kernel.spec import KernelSpec
from vpps.model.model import Lookup, Model
from vpps.model.optim import SGD, Optimizer
from vpps.model.precisions import ALL_EXACT, Precisions
from vpps.ops.operand import Expression
from vpps.ops.precision import EXACT
from vpps.placement.distribution import Distribution
from vpps.placement.onchip import DEVICES, ChipOptions, Device, known_device
from vpps.placement.stacks import Stacks
from vpps.placement.update import Update
from vpps.planner.plan import Plan
from vpps.planner.planner import Planner
from vpps.targets import CUDA, TARGETS, target_named
from vpps.values import as_count, as_flag, as_number

_ARCH = re.compile(r"sm_(\d+)[af]?")
_GENERATIONS = (70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 101, 103, 110, 120, 121)
"""Existing compute capabilities, times ten."""
_MOST_SMS = 4096  # over ten times as many as any GPU has; limits the size of the owner tables


@dataclass(frozen=True, slots=True)
class Specialized:
    """A kernel compiled for a model (`specialize`).

    Attributes:
        target: name of the target.
        arch: architecture, such as "sm_90"; the instruction set ("avx512") on cpu, "" on simt.
        vps: number of virtual processors in a group.
        source: source code of the kernel.
        binary: path of the compiled kernel in the cache: a cubin, or a library for this machine.
        resources: registers, spills, code size; None unless target is "cuda".
        spec: instructions that the kernel supports, and the data that it holds on the chip.
        arrangement: weights that the chip holds, with the reasons.
        parameters: the parameters' places in memory.
        stepped_down: number of larger arrangements that did not fit into registers.
    """

    target: str
    arch: str
    vps: int
    source: str
    binary: Path
    resources: Resources | None
    spec: KernelSpec
    arrangement: Arrangement
    parameters: Distribution
    stepped_down: int = 0

    def explain(self) -> str:
        """Describe where each weight is kept and why, and the kernel's resources: plain text, 110 columns wide."""
        return explain_kernel(self.parameters, self.arrangement.onchip, self, self.stepped_down)


def specialize(
    model: Model,
    example: Example | None = None,
    target: str = CUDA.name,
    arch: str | None = None,
    sms: int | None = None,
    groups: int | None = None,
    *,
    device: str | Device | None = None,
    vps: int | None = None,
    optimizer: Optimizer | None = None,
    clip_norm: float | None = None,
    train: bool = True,
    schedule: str = "vector",
    passes: Passes | None = None,
    precision: str | Mapping[str, str] = EXACT.name,
    **options: Any,
) -> Specialized:
    """Compile the kernel that a handle would use for a model, on any machine: no driver or GPU is needed.

    Args:
        model: the model; its parameters matter, their values do not.
        example: a graph of the model and its loss. The kernel supports the instructions for training with this graph
            and evaluating it. The cells' use of a matrix decides how its rows are distributed. Without an example,
            `specialize` assumes that every matrix multiplies one vector, and distributes its rows one by one; the
            kernel supports only products, their gradients, lookups and updates. Sizes and tiers are then about right,
            but the kernel differs from the one for the model's cells.
        target: "cuda", "simt" (compiled for the emulator; 4 multiprocessors by default) or "cpu" (one kernel serves
            all models; the arguments that describe a GPU do not matter).
        arch: architecture to compile for; default "sm_90", or the architecture of `device`.
        sms: number of multiprocessors; default: the device's number; 132 (H200) for "sm_90".
        groups: number of groups of virtual processors, each with a copy of the weights and its part of the batch;
            default: see `vpps.ChipOptions`, or one if `vps` is given.
        device: name of a GPU ("T4", "A100", "H100", ...) or its description; default: a GPU of the architecture.
        vps: number of virtual processors in a group; default: as many as can run at the same time.
        optimizer: default `SGD`; only its kind matters.
        clip_norm: None for no clipping; the value of a bound does not matter.
        train: False for a kernel that evaluates only.
        schedule, passes, precision: see `vpps.Handle`.
        **options: fields of `vpps.ChipOptions`, which force parts of the on-chip weight distribution.

    Raises:
        HandleError, CapacityError: an argument is wrong, or forces something that does not fit.
        GraphError: the example's loss is not a scalar of its graph.
        CompileError: the compiler is missing or does not know the architecture.
        SpillError: the kernel does not fit into registers, and the forced options allow no smaller arrangement.
    """
    if not isinstance(model, Model):
        raise HandleError(f"specialize({model!r}): expected a vpps.Model")
    if not len(list(model)):
        raise HandleError("specialize: the model has no parameters yet; declare them first")
    row = target_named(target)
    graph, loss = check_example(example) if example is not None else _products_of(model)
    for name, value in {
        "optimizer": optimizer,
        "clip_norm": clip_norm,
        "passes": passes,
        "precision": precision,
    }.items():
        check_option(name, value)
    if not isinstance(schedule, str) or schedule not in SCHEDULES:
        raise HandleError(f"schedule={schedule!r}: expected one of {', '.join(SCHEDULES)}")
    rule = SGD(lr=0.1) if optimizer is None else optimizer
    train = as_flag(train, "train", HandleError)
    update = Update(rule, 1, 1, as_number(clip_norm)) if train else None
    if vps is not None:
        vps = as_count(vps, "vps", HandleError)
    if groups is not None or vps is not None:
        groups = 1 if groups is None else as_count(groups, "groups", HandleError)
    chip_options = _options(groups, options)
    moments = len(rule.moments) if train else 0
    passes = Configuration(passes=passes or Passes.from_environment()).on(target).passes
    gpu, panel, made_for = None, 1, ""
    if row.is_gpu:
        gpu, compiled_for = gpu_for(target, device, arch, sms)
        made_for = compiled_for if row.has_archs else ""
        vps = (gpu.sms // (groups or 1) if vps is None else vps) * (groups or 1)
    else:
        chip_options = ChipOptions()
        vps, panel = _threads(vps, train)
    precisions = Precisions.given(precision)
    check_precision(precisions, target, gpu)
    check_precision_of(model, precisions)
    found = specs(
        model, (graph, loss), gpu, vps, update, moments, chip_options, schedule, passes, panel, precisions=precisions
    )
    return fitting(target, made_for, found)


def fitting(target: str, arch: str, found: Iterable[tuple[KernelSpec, Arrangement, Distribution]]) -> Specialized:
    """Compile the first of the `specs` whose kernel does not spill."""
    for stepped_down, planned in enumerate(found):
        try:
            made = compile_planned(target, arch, *planned)
        except SpillError:
            continue
        return replace(made, stepped_down=stepped_down)
    raise AssertionError("arrangements end with an error")


def specs(
    model: Model,
    example: Example,
    gpu: Device | None,
    vps: int,
    update: Update | None,
    moments: int,
    options: ChipOptions,
    schedule: str = "vector",
    passes: Passes | None = None,
    panel: int = 1,
    precisions: Precisions = ALL_EXACT,
) -> Iterator[tuple[KernelSpec, Arrangement, Distribution]]:
    """Yield kernel specs for a graph, best first; later specs hold less on the chip, in case a kernel spills.

    Without a GPU, there is one spec, which holds nothing on the chip. Raises the errors of
    `vpps.compiler.arrangement.arrangements`.

    Args:
        vps: number of virtual processors in all groups.
        precisions: precisions of products with parameters.
    """
    graph, loss = example
    passes = Passes.from_environment() if passes is None else passes
    trains = update is not None
    stacks = stacks_of(model, graph, update, passes, panel, [*options.tiers, *dict(precisions.named)])
    found = iter([NO_CHIP])
    if gpu is not None:
        found = arrangements(matrices_of(graph.blocks, stacks, precisions), gpu, vps, options, trains, schedule)
    for arrangement in found:
        held, groups = arrangement.held, arrangement.chip.groups
        parameters = Distribution(
            model, vps // groups, panel, moments, trains, held=held, groups=groups, stacks=stacks, precisions=precisions
        )
        plan = example_plan(Planner(parameters, "sinks-last", schedule, passes), graph, loss, update)
        spec = KernelSpec(plan.instructions, arrangement.chip, plan.tails, precisions.is_reduced)
        yield spec, arrangement, parameters


def example_plan(planner: Planner, graph: Graph, loss: Expression, update: Update | None) -> Plan:
    """Return a plan with the instructions for both training (with `update`) and inference; it must not be launched."""
    if update is None:
        return planner.plan_forward(graph, [loss])
    training = planner.plan_training(graph, loss, update, 0)
    inference = planner.plan_forward(graph, [loss])
    both = copy(training)
    both.used = training.instructions | inference.instructions, training.tails | inference.tails
    return both


def _products_of(model: Model) -> Example:
    """Build a graph that uses each parameter in the way its kind suggests, and a loss that depends on all of them."""
    graph = Graph()
    terms = []
    for p in model:
        if isinstance(p, Lookup):
            row = graph.lookup(p, 0)
            terms.append(functions.sum(row) if row.shape else row)
        elif len(p.shape) == 2:
            terms.append(functions.sum(p @ graph.input(np.zeros(p.shape[1]), grad=True)))
        else:
            terms.append(functions.sum(p + graph.input(np.zeros(p.shape), grad=True)))
    return graph, functions.sum(terms)


def _options(groups: int | None, options: dict[str, Any]) -> ChipOptions:
    names = [f.name for f in fields(ChipOptions) if f.name != "groups"]
    for unknown in sorted(set(options) - set(names)):
        hint = ARGUMENTS.get(("ChipOptions", unknown), f"there is no such option; there are {', '.join(names)}")
        raise HandleError(f"specialize(..., {unknown}=...): {hint}")
    return ChipOptions(groups=groups, **options)


def gpu_for(target: str, device: str | Device | None, arch: str | None, sms: int | None) -> tuple[Device, str]:
    """Return the GPU to plan for and the architecture to compile for."""
    if sms is not None:
        sms = as_count(sms, "sms", HandleError, most=_MOST_SMS)
    number = None
    if arch is not None:
        found = _ARCH.fullmatch(arch) if isinstance(arch, str) else None
        if found is None:
            raise HandleError(f"arch={arch!r}: expected sm_ and digits, such as 'sm_90'")
        number = int(found[1])
    row, gpu = TARGETS[target], device
    emulated = row.is_emulated and device is None
    if device is None:
        gpu = row.device() if emulated else _of_generation(90 if number is None else number)
    gpu = known_device(gpu) if isinstance(gpu, str) else gpu
    if not isinstance(gpu, Device):
        raise HandleError(f"device={device!r}: expected the name of a GPU or a description")
    if number is not None and not emulated and (number // 10 != gpu.sm // 10 or number > gpu.sm):
        raise HandleError(f"arch={arch!r}: the {gpu.name} runs code for sm_{gpu.sm}; leave arch out, or name it")
    return gpu if sms is None else replace(gpu, sms=sms), arch or f"sm_{gpu.sm}"


def _of_generation(sm: int) -> Device:
    """Return the device with that compute capability; otherwise its generation's last table row, with `sm` changed."""
    alike = [d for d in DEVICES.values() if d.sm // 10 == sm // 10]
    if not alike:
        known = ", ".join(sorted({f"sm_{d.sm}" for d in DEVICES.values()}, key=lambda name: int(name[3:])))
        raise HandleError(f"arch='sm_{sm}': no GPU of that generation is known here ({known}); describe it by device=")
    if sm not in _GENERATIONS:
        real = ", ".join(f"sm_{n}" for n in _GENERATIONS if n // 10 == sm // 10)
        raise HandleError(f"arch='sm_{sm}': there is no such GPU; its generation has {real}")
    exact = [d for d in alike if d.sm == sm]
    if exact:
        return exact[-1]  # H200 rather than H100
    return replace(alike[-1], sm=sm, name=f"sm_{sm} like {alike[-1].name}")


def compile_planned(
    target: str,
    arch: str,
    spec: KernelSpec,
    arrangement: Arrangement,
    parameters: Distribution,
) -> Specialized:
    """Compile the kernel for a finished plan.

    Args:
        arch: architecture to compile for; "" if the target has only one.

    Raises:
        CompileError: a compiler is missing or fails; SpillError: the arrangement does not fit into registers.
    """
    row, vps = TARGETS[target], parameters.n_vps
    if row.is_gpu:
        source, binary, _, resources = row.compile(spec.made_for(target, parameters.all_vps), arch)
        return Specialized(target, arch, vps, source, binary, resources, spec, arrangement, parameters)
    from vpps.kernel.host_compiler import build_cpu, build_tails

    binary, source, tile = build_cpu(spec.rounds)
    if spec.tails:
        build_tails(tuple(spec.tails))  # into the cache, for handles
    return Specialized(target, tile.isa, vps, source, binary, None, spec, arrangement, parameters)


def stacks_of(
    model: Model, graph: Graph, update: Update | None, passes: Passes, panel: int, apart: Collection[str] = ()
) -> Stacks:
    """Return the parameter stacks that a graph's cells allow."""
    stacking = Stacking(model, passes, panel, apart)
    stacking.see(graph.blocks, SGD(lr=0.1) if update is None else update.optimizer)
    return stacking.stacks


def _threads(vps: int | None, train: bool) -> tuple[int, int]:
    """Return the number of virtual processors on this machine, and the number of rows in a panel."""
    from vpps.kernel.host_compiler import tile_of_machine
    from vpps.runtime.cores import default_vps, usable_cores
    from vpps.runtime.cpu import MAX_VPS

    count = default_vps(usable_cores(), train) if vps is None else vps
    return as_count(count, "vps", HandleError, most=MAX_VPS), tile_of_machine().panel
