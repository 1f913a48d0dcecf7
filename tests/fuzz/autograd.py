"""Runs the same programs in PyTorch, float64, if it is installed: call by call, without cells. PyTorch's autograd gives
the gradients. This checks the reference, which shares tracing and the op table with vpps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np

INSTALLED = find_spec("torch") is not None
TOLERANCE = 1e-6
"""Numbers in a program are float32 in vpps, and double here."""


class _List(list[Any]):
    """A list argument with its elements' shape, because the list can be empty."""

    def __init__(self, elements: Sequence[Any], shape: tuple[int, ...]) -> None:
        super().__init__(elements)
        self.shape = shape


def losses(lines: list[str], weights: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
    """Return a program's loss, and its gradients by name, with these weights. Dropout is off."""
    import torch

    made: dict[str, Any] = {}

    def declare(name: str, shape: object, **options: object) -> Any:
        made[name] = torch.tensor(weights[name], dtype=torch.float64, requires_grad=True)
        return made[name]

    def constant(array: Any) -> Any:
        return torch.tensor(np.asarray(array, np.float32), dtype=torch.float64)

    graph = SimpleNamespace(
        input=constant, zeros=lambda n: torch.zeros(n, dtype=torch.float64), lookup=lambda table, row: table[row],
        call=lambda f, *args: f(*args),
    )  # fmt: skip
    model = SimpleNamespace(parameter=declare, lookup=declare)
    names = {"np": np, "vpps": _functions(torch) | {"Model": lambda seed: model, "Graph": lambda: graph}}
    names["vpps"] = SimpleNamespace(**names["vpps"])
    exec("\n".join(line for line in lines if not line.startswith("import ")), names)
    loss = names["loss"]
    loss.backward()
    return loss.item(), {k: np.zeros(p.shape) if p.grad is None else p.grad.numpy() for k, p in made.items()}


def _functions(torch: Any) -> dict[str, Callable[..., Any]]:
    def zeros(shape: tuple[int, ...]) -> Any:
        return torch.zeros(shape, dtype=torch.float64)

    def cell(f: Any = None, *, elements: Mapping[str, tuple[int, ...]] = {}) -> Any:
        if f is None:
            return lambda f: cell(f, elements=elements)
        shapes = list(elements.values())

        def called(*args: Any) -> Any:
            remaining = iter(shapes)
            return f(*(_List(x, next(remaining)) if isinstance(x, list) else x for x in args))

        return called

    def reduced(f: Callable[[Any], Any], of_tensor: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def apply(x: Any) -> Any:
            if not isinstance(x, list):
                return of_tensor(x)
            return f(torch.stack(list(x))) if x else zeros(x.shape)

        return apply

    def each(f: Callable[..., Any], *lists: Any) -> _List:
        example = f(*(zeros(xs.shape) for xs in lists))
        return _List([f(*xs) for xs in zip(*lists, strict=True)], tuple(example.shape))

    def softmax(x: Any) -> Any:
        if not isinstance(x, list):
            return torch.softmax(x, -1)
        return _List(list(torch.softmax(torch.stack(list(x)), 0)) if x else [], x.shape)

    def logsumexp(x: Any) -> Any:
        if not x:
            return zeros(x.shape) - np.inf
        return torch.logsumexp(torch.stack(list(x)), 0)

    def where(condition: Any, a: Any, b: Any) -> Any:
        return torch.where(condition, *(torch.as_tensor(x, dtype=torch.float64) for x in (a, b)))

    def cosine(a: Any, b: Any) -> Any:
        norms = (a * a).sum().clamp_min(1e-300).sqrt() * (b * b).sum().clamp_min(1e-300).sqrt()
        return (a * b).sum() / norms.clamp_min(1e-8)

    return {
        "cell": cell, "each": each, "sum": reduced(lambda x: x.sum(0), lambda x: x.sum()),
        "mean": reduced(lambda x: x.mean(0), lambda x: x.mean()),
        "max": reduced(lambda x: x.max(0).values, lambda x: x.max()),
        "min": reduced(lambda x: x.min(0).values, lambda x: x.min()), "softmax": softmax, "cosine": cosine,
        "logsumexp": logsumexp, "norm": torch.linalg.vector_norm, "stack": torch.stack, "where": where,
        "log_softmax": lambda x: torch.log_softmax(x, -1), "lookup": lambda table, row: table[row], "concat": torch.cat,
        "split": lambda x, n: torch.chunk(x, n), "reshape": lambda x, shape: x.reshape(shape),
        "transpose": lambda x: x.T, "dot": lambda a, b: (a * b).sum(),
        "maximum": lambda a, b: torch.where(a >= b, a, b), "dropout": lambda x, rate: x,
        "stop_gradient": lambda x: x.detach(), "layer_norm": lambda x: torch.nn.functional.layer_norm(x, x.shape),
        "silu": torch.nn.functional.silu, "gelu": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        **{name: getattr(torch, name) for name in ("tanh", "sigmoid", "relu", "outer", "square", "sin", "cos")},
    }  # fmt: skip
