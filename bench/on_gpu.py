"""What the benches on a GPU run and depend on: contenders, their precision, the device. Works without PyTorch, too."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Sequence

import harness


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


def configure(contenders: Sequence[str], device: str, tf32: bool) -> None:
    """Set PyTorch's precision, if it is among the contenders."""
    if list(contenders) != ["vpps"]:
        from peers import torch_gpu

        torch_gpu.configure(device, tf32)


def describe(contenders: Sequence[str], device: str) -> dict[str, object]:
    """What figures of a device depend on, for the lines."""
    found: dict[str, object] = {"name": "cpu"}
    if device == "cuda":
        from vpps.runtime.driver import usable_gpu

        found = usable_gpu()._asdict()
    if list(contenders) != ["vpps"]:
        from peers import torch_gpu

        found |= torch_gpu.describe(device)
    return found
