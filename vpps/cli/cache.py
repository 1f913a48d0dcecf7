"""`vpps-cache`: lists and clears the cache of compiled kernels, and compiles ahead of time."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import typer

import vpps
from vpps.cli.console import Version, app_named, exit_codes, plain_console
from vpps.cli.inspected import AnyWorkload, Arch, BatchSize, Target, Train, Vps, chosen_target, examples
from vpps.cli.options import AUTO_TARGET
from vpps.cli.streams import run_program
from vpps.cli.workload import REST, Workload, load_workload
from vpps.errors import CompileError, WorkloadError
from vpps.kernel.cache import Label, entries, eviction, places
from vpps.kernel.cache.entries import Usage
from vpps.locks import sweep
from vpps.targets import TARGETS
from vpps.text import counted, in_bytes, table

PROGRAM = "vpps-cache"

app = app_named(PROGRAM)


@app.callback()
def about(version: Version = False) -> None:
    """List, remove or compile ahead of time the kernels in the disk cache."""


@app.command("list", **examples(f"{PROGRAM} list"))
def list_() -> None:
    """Show path, size and limit of the cache, then kind, size and last use of every entry."""
    with exit_codes(PROGRAM):
        found, most = _stored(), eviction.limit()
        size = in_bytes(sum(usage.size for usage in found))
        limit = f" of {in_bytes(most)}" if most else ""
        print(f"{places.configured()}: {counted(len(found), 'entry', 'entries')}, {size}{limit}")
        if found:
            rows = map(_row, sorted(found, key=lambda usage: -usage.used))
            print("\n".join(table(("kind", "made for", "compiler", "size", "last used"), rows, (0, 1, 2))))


@app.command(**examples(f"{PROGRAM} clear"))
def clear() -> None:
    """Remove all entries and the leftovers of killed processes. Running programs are not disturbed."""
    with exit_codes(PROGRAM):
        found = _stored()
        for usage in found:
            if not entries.discard(usage.folder) and usage.folder.exists():
                raise CompileError(f"{usage.folder} cannot be removed: is {usage.folder.parent} read-only?")
        for place in places.usable(create=False):
            sweep(place)
        print(f"removed {counted(len(found), 'entry', 'entries')}, {in_bytes(sum(usage.size for usage in found))}")


@app.command(
    context_settings=REST,
    **examples(
        f"{PROGRAM} warm",
        f"{PROGRAM} warm tree-lstm --hidden 512",
        f"{PROGRAM} warm tree-lstm --hidden 256 --target cuda --arch sm_90",
        f"{PROGRAM} warm my_model:batches --target simt",
    ),
)
def warm(
    context: typer.Context,
    workload: AnyWorkload = None,
    batch_size: BatchSize = 16,
    target: Target = AUTO_TARGET,
    arch: Arch = None,
    vps: Vps = None,
    train: Train = True,
) -> None:
    """Compile kernels ahead of time that programs would compile at their start, such as in a container image.

    Without a workload, compile the kernel that all models on a target share. With a workload, compile the kernel of
    its model as well. Kernels in the cache are not compiled again.
    """
    with exit_codes(PROGRAM):
        chosen = chosen_target(target, arch)
        if workload is None and context.args:
            raise WorkloadError(f"{context.args[0]}: no such option without a task or module:function before it")
        loaded = None if workload is None else load_workload(workload, batch_size, context.args)
        common, build = TARGETS[chosen].common
        if common:
            _run(common, build)
        if loaded is not None:
            what = f"{chosen} kernel of {loaded.name}"
            _run(what, partial(_specialised, loaded, chosen, arch, vps, train))
        if loaded is None and TARGETS[chosen].is_gpu:
            print(f"kernels of target {chosen} are made for a model: name a task or module:function to compile one")


def _specialised(workload: Workload, target: str, arch: str | None, vps: int | None, train: bool) -> None:
    """Compile the kernel of a workload's model.

    Args:
        arch: architecture of the GPU; None for this machine's GPU, or sm_90 without one.
        vps: virtual processors; None for the largest number that the GPU runs concurrently.
    """
    sms = None
    row = TARGETS[target]
    if row.has_archs and arch is None and (gpu := row.device()) is not None:
        arch, sms = f"sm_{gpu.sm}", gpu.sms
    example = workload.first(1)[0]
    vpps.specialize(
        workload.model, example, target, arch, sms, vps=vps, optimizer=workload.optimizer, train=train
    )  # fmt: skip


def _run(what: str, build: Callable[[], object]) -> None:
    """Run a compilation and print its result. Raises VppsError."""
    before, start = {usage.folder for usage in _stored()}, time.perf_counter()
    with plain_console().status(f"{what} ..."):
        build()
    new = {usage.folder for usage in _stored()} - before
    seconds = f"{time.perf_counter() - start:.1f} s"
    print(f"{what}: {f'compiled in {seconds}' if new else 'was there'}", flush=True)


def _stored() -> list[Usage]:
    """Return all cache entries."""
    return [usage for place in places.usable(create=False) for usage in entries.usages(place)]


def _row(usage: Usage) -> tuple[str, ...]:
    entry = entries.read(usage.folder)
    label = Label("unknown") if entry is None else entry.label
    return label.kind, label.made_for, label.compiler, in_bytes(usage.size), _ago(usage.used)


def _ago(moment: float) -> str:
    """Format the time since a moment, such as "3 min"."""
    seconds = max(0.0, time.time() - moment)
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def main() -> None:
    """Run the program. Exit code: 0, 1 for an error, 2 for wrong usage, 130 after Ctrl-C, 141 if the reader is gone."""
    run_program(PROGRAM, app)
