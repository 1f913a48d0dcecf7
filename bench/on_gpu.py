"""What the benches on a GPU run and depend on: contenders, their precisions, the device. Works without PyTorch, too."""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import harness
from datasets import name_of
from treelstm import check_losses, train


def choose_contenders(asked: str | None, known: Sequence[str], device: str) -> list[str]:
    """Names from the command line; by default all, or vpps alone where PyTorch cannot use the device."""
    if asked is not None:
        return harness.choose_contenders(asked, known)
    if (reason := _why_torch_is_unusable(device)) is not None:
        print(f"measuring vpps alone: {reason}", file=sys.stderr)
        return ["vpps"]
    return list(known)


def _why_torch_is_unusable(device: str) -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        return f"PyTorch {torch.__version__} cannot use the GPU"
    return None


class LossesDifferError(Exception):
    """Contenders do not compute the same: their figures would mean nothing."""


def each_beside_vpps(contenders: Sequence[str], run: Callable[[list[str]], None]) -> bool:
    """Call `run` with vpps alone, then with vpps and each of the others, so that there is a figure as soon as one of
    them has run. Whoever fails is named, and the next one runs. Whether none failed."""
    others = [name for name in contenders if name != "vpps"]
    own = ["vpps"] if "vpps" in contenders else []
    well = True
    for names in [own] * bool(own) + [[*own, name] for name in others]:
        try:
            run(names)
        except Exception:
            well = False
            traceback.print_exc()
            print(f"{' beside '.join(names)}: failed, see above", file=sys.stderr, flush=True)
    return well


def compare(
    bench: str, case: str, unit: str, contenders: dict[str, Any], batches: dict[str, list[Any]], n: int,
    tolerance: float, passes: int, shown: Callable[[str], str], extra: dict[str, object],
) -> None:  # fmt: skip
    """Check, warm up, time and report: a line of vpps beside each of the others, of whoever is alone else.

    Args:
        n: sentences or sequences of a pass, of which `unit` counts so many per second.
        tolerance: relative, of losses.
        shown: how lines call a peer.
        extra: for every line.

    Raises:
        LossesDifferError: they do not compute the same.
    """
    check_losses(contenders, batches, tolerance, LossesDifferError)
    passes_of = {name: partial(train, contender, batches[name]) for name, contender in contenders.items()}
    for warm_up in passes_of.values():
        warm_up()  # all sizes once: allocator, cuBLAS, compilers
    rates = {name: [n / s for s in times] for name, times in harness.interleave(passes_of, passes).items()}
    losses = {name: contender.loss() for name, contender in contenders.items()}
    padding = {name: {"padding": round(c.padding, 3)} for name, c in contenders.items() if hasattr(c, "padding")}
    for contender in contenders.values():
        contender.close()
    own = rates.pop("vpps", None)
    emit = partial(harness.report, bench, case, unit=unit, **extra)
    for name, values in rates.items():
        more = padding.get(name, {})
        if own is None:
            emit(values=values, program=shown(name), loss=losses[name], **more)
        else:
            emit(values=own, peer=(shown(name), values), loss=losses["vpps"], peer_loss=losses[name], **more)
    if own is not None and not rates:
        emit(values=own, loss=losses["vpps"])


TOLERANCES = {"float32": 1e-4, "bf16": 1e-2, "tf32": 1e-2, "3xtf32": 1e-4}
"""Relative, of losses, by the precision of products."""


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """A command line with `--precision`."""
    parser.add_argument(
        "--precision", type=harness.words, default=list(TOLERANCES), metavar="NAME,...",
        help=f"of products, one after the other (default: {','.join(TOLERANCES)})",
    )  # fmt: skip
    options = parser.parse_args()
    if unknown := set(options.precision) - set(TOLERANCES):
        parser.error(f"--precision {','.join(sorted(unknown))}: expected some of {','.join(TOLERANCES)}")
    return options


def configure(contenders: Sequence[str], device: str, precision: str) -> None:
    """Set PyTorch's precision of float32 products, if it is among the contenders."""
    if list(contenders) != ["vpps"]:
        from peers import torch_gpu

        torch_gpu.configure(device, precision == "tf32")


def about(contenders: Sequence[str], device: str, data: Path) -> dict[str, object]:
    """What figures depend on, for the lines."""
    return {"data": name_of(data), "gpu": describe(contenders, device), "date": datetime.date.today().isoformat()}


def describe(contenders: Sequence[str], device: str) -> dict[str, object]:
    """The device, and what PyTorch says of it."""
    found: dict[str, object] = {"name": "cpu"}
    if device == "cuda":
        from vpps.runtime.driver import usable_gpu

        found = usable_gpu()._asdict()
    if list(contenders) != ["vpps"]:
        from peers import torch_gpu

        found |= torch_gpu.describe(device)
    return found
