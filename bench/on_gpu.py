"""Shared parts of the GPU benches: contenders, their precisions, the device. Also works without PyTorch."""

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
from steady import Steady
from treelstm import compare_losses, first_losses, train


def choose_contenders(asked: str | None, known: Sequence[str], device: str) -> list[str]:
    """Return the names from the command line; default: all, or only vpps if PyTorch cannot use the device."""
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


def alone_then_beside(contenders: Sequence[str], run: Callable[[list[str]], bool]) -> bool:
    """Call `run` first with only vpps, so that there is a figure before any PyTorch code runs, then with all
    contenders. If a call fails, it is named, and the next one is made. Returns True if all went well."""
    well = True
    for names in dict.fromkeys((tuple(name for name in contenders if name == "vpps"), tuple(contenders))):
        try:
            well &= not names or run(list(names))
        except Exception:
            well = False
            _tell(" beside ".join(names))
    return well


def _tell(who: str) -> None:
    traceback.print_exc()
    print(f"{who}: failed, see above", file=sys.stderr, flush=True)


def compare(
    bench: str, case: str, unit: str, names: Sequence[str], make: Callable[[str], tuple[Any, list[Any]]], n: int,
    tolerance: float, options: argparse.Namespace, shown: Callable[[str], str], extra: dict[str, object],
) -> bool:  # fmt: skip
    """Check, warm up, time in turns and report: a line for vpps and each peer, or a line for a single contender.
    Contenders that fail before the timing are named and left out. Returns True if all could be measured.

    Args:
        make: returns the contender with a given name and its batches.
        n: number of sentences or sequences in the batches; `unit` is items per second.
        tolerance: largest relative difference of losses.
        shown: returns a peer's name in lines.
        extra: further entries for every line.
    """
    losses: dict[str, list[float]] = {}
    contenders, measured = {}, {}
    for name in names:
        try:
            contender, batches = make(name)
            found = first_losses(contender, batches)
            compare_losses({**dict(list(losses.items())[:1]), name: found}, tolerance)
            train(contender, batches)  # all sizes once: warms up allocator, cuBLAS, compilers
            measured[name] = Steady(contender, batches, n, options.seconds)
        except Exception:
            _tell(name)
        else:
            losses[name], contenders[name] = found, contender
    if list(measured) == ["vpps"] != list(names):  # vpps alone already has a line
        measured.clear()
    if measured:
        harness.interleave({name: steady.measure for name, steady in measured.items()}, options.passes)
    for contender in contenders.values():
        contender.close()
    own = measured.pop("vpps", None)
    emit = partial(harness.report, bench, case, unit=unit, seconds=options.seconds, **extra)
    for name, steady in measured.items():
        more = {"padding": round(contenders[name].padding, 3)} if hasattr(contenders[name], "padding") else {}
        if own is None:
            emit(values=steady.rates, program=shown(name), loss=losses[name][-1], **steady.apart(), **more)
        else:
            emit(
                values=own.rates, peer=(shown(name), steady.rates), loss=losses["vpps"][-1],
                peer_loss=losses[name][-1], **own.apart(), **steady.apart("peer_"), **more,
            )  # fmt: skip
    if own is not None and not measured:
        emit(values=own.rates, loss=losses["vpps"][-1], **own.apart())
    return len(losses) == len(names)


TOLERANCES = {"float32": 1e-4, "bf16": 1e-2, "tf32": 1e-2, "3xtf32": 1e-4}
"""Largest relative difference of losses, by the precision of products."""


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse a command line with `--precision` and `--seconds`."""
    parser.add_argument("--seconds", type=float, default=1.0, help="least duration of a pass (default: %(default)s)")
    parser.add_argument(
        "--precision", type=harness.words, default=list(TOLERANCES), metavar="NAME,...",
        help=f"precisions of products, one after the other (default: {','.join(TOLERANCES)})",
    )  # fmt: skip
    options = parser.parse_args()
    if unknown := set(options.precision) - set(TOLERANCES):
        parser.error(f"--precision {','.join(sorted(unknown))}: expected some of {','.join(TOLERANCES)}")
    return options


def configure(contenders: Sequence[str], device: str, precision: str) -> None:
    """Set PyTorch's precision for float32 products, if PyTorch is among the contenders."""
    if list(contenders) != ["vpps"]:
        from peers import torch_gpu

        torch_gpu.configure(device, precision == "tf32")


def about(contenders: Sequence[str], device: str, data: Path) -> dict[str, object]:
    """Return the facts that the figures depend on, for the lines."""
    return {"data": name_of(data), "gpu": describe(contenders, device), "date": datetime.date.today().isoformat()}


def describe(contenders: Sequence[str], device: str) -> dict[str, object]:
    """Describe the device, by vpps and by PyTorch."""
    found: dict[str, object] = {"name": "cpu"}
    if device == "cuda":
        from vpps.runtime.driver import usable_gpu

        found = usable_gpu()._asdict()
    if list(contenders) != ["vpps"]:
        from peers import torch_gpu

        found |= torch_gpu.describe(device)
    return found
