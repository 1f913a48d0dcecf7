"""`vpps-cache`: what is in the cache of compiled kernels; clearing it; compiling ahead."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.table import Table

import vpps
from vpps.cli.console import Version, app_named, bytes_text, exit_codes, plain_console, table_of
from vpps.cli.inspected import Arch, AsJson, BatchSize, Target, Train, Vps, chosen_target, examples
from vpps.cli.options import AUTO_TARGET
from vpps.cli.streams import run_program
from vpps.cli.workload import REST, WORKLOAD_HELP, Workload, load_workload
from vpps.config import VARIABLES
from vpps.errors import WorkloadError
from vpps.kernel.cache import inventory
from vpps.kernel.cache.inventory import CacheSummary, Item
from vpps.targets import TARGETS

PROGRAM = "vpps-cache"
DAY = 86400.0

app = app_named(PROGRAM)

WorkloadName = Annotated[
    str | None,
    typer.Argument(
        metavar="[WORKLOAD]",
        help=WORKLOAD_HELP + " Without one: only what serves all models.",
        show_default=False,
    ),
]
OlderThan = Annotated[
    float | None, typer.Option(min=0, metavar="DAYS", help="Only what was not used for that many days.")
]
Damaged = Annotated[bool, typer.Option("--damaged", help="Only what is damaged; it would be made anew anyway.")]


@app.callback()
def about(version: Version = False) -> None:
    """Compiled kernels are kept on disk: look at them, remove them, compile them ahead."""


@app.command("list", **examples(f"{PROGRAM} list", f"{PROGRAM} list --json | jq '.[] | select(.damage)'"))
def list_(as_json: AsJson = False) -> None:
    """Every entry: what it is, for what it was compiled, its size, when it was made and last used, whether it is sound.

    All files are compared with their digests.
    """
    with exit_codes(PROGRAM):
        items = list(inventory.items())
        if as_json:
            print(json.dumps([_as_json(item) for item in items]))
            return
        if not items:
            print(f"no compiled kernels in {inventory.summary().directory}")
            return
        text = ("key", "kind", "made for", "compiler")
        plain_console().print(table_of((*text, "size", "made", "last used", ""), map(_row, items), left=(*text, "")))


@app.command(**examples(f"{PROGRAM} stat", f"{PROGRAM} stat --json | jq .bytes"))
def stat(as_json: AsJson = False) -> None:
    """Where the cache is, how much is in it, its limit; why it is elsewhere; and the variables that vpps knows."""
    with exit_codes(PROGRAM):
        found = inventory.summary()
        kinds = Counter(item.kind for item in found.items)
        damaged = sum(item.damage is not None for item in found.items)
        if as_json:
            print(json.dumps(_stat(found, kinds, damaged)))
            return
        lines = {
            "directory": str(found.directory),
            "refused": f"{found.refused}" if found.refused else "",
            "in use": ", ".join(map(str, found.in_use)) or "nothing yet",
            "entries": ", ".join([str(len(found.items)), *(f"{kind}: {n}" for kind, n in sorted(kinds.items()))]),
            "damaged": str(damaged or ""),
            "size": f"{bytes_text(found.size)} of {bytes_text(found.limit) if found.limit else 'any number of bytes'}",
        }
        table = Table(box=None, pad_edge=False, show_header=False)
        for name, text in lines.items():
            if text:
                table.add_row(name, text)
        for variable in VARIABLES:
            if variable.is_set:
                table.add_row(variable.name, variable.get())
        plain_console().print(table)


@app.command(**examples(f"{PROGRAM} clear", f"{PROGRAM} clear --older-than 30", f"{PROGRAM} clear --damaged"))
def clear(older_than: OlderThan = None, damaged: Damaged = False) -> None:
    """Remove entries, all or some, and what killed processes left. Programs that run are not disturbed."""
    with exit_codes(PROGRAM):
        found = inventory.summary()
        oldest = time.time() - (older_than or 0) * DAY
        removed = [item for item in found.items if item.used <= oldest and (item.damage or not damaged)]
        for item in removed:
            inventory.remove(item)
        inventory.sweep()
        print(f"removed {len(removed)} of {len(found.items)} entries, {bytes_text(sum(item.size for item in removed))}")


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
    workload: WorkloadName = None,
    batch_size: BatchSize = 16,
    target: Target = AUTO_TARGET,
    arch: Arch = None,
    vps: Vps = None,
    train: Train = True,
) -> None:
    """Compile now what programs would compile when they start: in an image of a container, say, or on a login node.

    Without a workload that is what serves all models on a target; with one the kernel of its model as well. What the
    cache has is not compiled again.
    """
    with exit_codes(PROGRAM):
        chosen = chosen_target(target, arch)
        if workload is None and context.args:
            raise WorkloadError(f"{context.args[0]}: no such option without a task or module:function before it")
        loaded = None if workload is None else load_workload(workload, batch_size, context.args)
        for what, build in _steps(chosen, loaded, arch, vps, train):
            _run(what, build)
        if loaded is None and TARGETS[chosen].is_gpu:
            print(f"kernels of target {chosen} are made for a model: name a task or module:function to compile one")


def _steps(
    target: str, workload: Workload | None, arch: str | None, vps: int | None, train: bool
) -> Iterator[tuple[str, Callable[[], object]]]:
    """What there is to compile for a target: in words, and what does it.

    Args:
        workload: whose model's kernel is compiled, too; None for what serves all models.
        arch: of the GPU; None for that of the machine's, or sm_90.
        vps: virtual processors of a specialised kernel; None for all that the GPU runs side by side.
    """
    common = TARGETS[target].common
    for what, build in common() if common else ():
        yield what, build
    if workload is not None:
        what = f"{target} kernel of {workload.name}"
        yield what, lambda: _specialised(workload, target, arch, vps, train)


def _specialised(workload: Workload, target: str, arch: str | None, vps: int | None, train: bool) -> None:
    sms = None
    row = TARGETS[target]
    if row.has_archs and arch is None and (gpu := row.device()) is not None:
        arch, sms = f"sm_{gpu.sm}", gpu.sms
    example = workload.first(1)[0]
    vpps.specialize(
        workload.model, example, target, arch, sms, vps=vps, optimizer=workload.optimizer, train=train
    )  # fmt: skip


def _run(what: str, build: Callable[[], object]) -> None:
    """Compile something and say what came of it. Raises VppsError."""
    before, start = inventory.keys(), time.perf_counter()
    with plain_console().status(f"{what} ..."):
        build()
    new = len(inventory.keys() - before)
    seconds = f"{time.perf_counter() - start:.1f} s"
    print(f"{what}: {f'compiled in {seconds}' if new else 'was there'}", flush=True)


def _row(item: Item) -> tuple[str, ...]:
    label = item.record.label if item.record else None
    return (
        item.key[:12],
        item.kind,
        label.made_for if label else "",
        label.compiler if label else "",
        bytes_text(item.size),
        _ago(item.record.created) if item.record else "",
        _ago(item.used),
        f"damaged: {item.damage}" if item.damage else "",
    )


def _as_json(item: Item) -> dict[str, Any]:
    record = item.record
    return {
        "key": item.key,
        "kind": item.kind,
        "made_for": record.label.made_for if record else None,
        "compiler": record.label.compiler if record else None,
        "bytes": item.size,
        "created": _date(record.created) if record else None,
        "used": _date(item.used),
        "compile_seconds": record.seconds if record else None,
        "damage": item.damage,
        "path": str(item.folder / record.binary) if record else str(item.folder),
    }


def _stat(found: CacheSummary, kinds: Counter[str], damaged: int) -> dict[str, Any]:
    return {
        "directory": str(found.directory),
        "refused": found.refused,
        "in_use": [str(place) for place in found.in_use],
        "entries": len(found.items),
        "kinds": dict(sorted(kinds.items())),
        "damaged": damaged,
        "bytes": found.size,
        "limit": found.limit or None,
        "variables": {variable.name: variable.get() for variable in VARIABLES},
    }


def _ago(moment: float) -> str:
    """How long ago, "3 min"."""
    seconds = max(0.0, time.time() - moment)
    for unit, length in (("d", DAY), ("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _date(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")


def main() -> None:
    """Entry point. Exit code 0, or 1 for an error, 2 for wrong usage, 130 after Ctrl-C, 141 where nobody reads on."""
    run_program(PROGRAM, app)
