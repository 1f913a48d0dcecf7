"""How long the host prepares a mini-batch and how long it is computed, contender by contender, interleaved.

For the contenders of `treelstm.py` and `tree_fc.py`. Host and computation are taken apart in steps made one at a
time, each waited for, as in figure 9 and table 1 of the Cavs paper; how long a step takes when nothing is waited for
is measured beside it, in the same rounds. What counts as the host's:

    vpps       recording the graph or joining graphs that are data, planning, the script: until the kernel can begin
    PyTorch    the level schedule of the mini-batch; every operator that Python then calls counts as computation
    DyNet      building the expressions; its search for batches is part of forward and counts as computation
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import harness


class Contender(Protocol):
    """One program that trains a model. `step` is `run(graph(batch))`; both may return before the work is done."""

    def step(self, batch: Sequence[Any]) -> None: ...
    def graph(self, batch: Sequence[Any]) -> Any: ...
    def run(self, graph: Any) -> None: ...
    def loss(self) -> float: ...


class Split(NamedTuple):
    """Seconds of one step."""

    host: float
    computation: float


def split_step(contender: Contender, batch: Sequence[Any]) -> Split:
    """Make one step, wait for it, and take it apart. Nothing may be in flight."""
    begin = time.perf_counter_ns()
    graph = contender.graph(batch)
    prepared = time.perf_counter_ns()
    contender.run(graph)
    contender.loss()
    end = time.perf_counter_ns()
    planned: Callable[[], int] | None = getattr(contender, "planned", None)
    if planned is not None:
        prepared = planned()
    return Split((prepared - begin) * 1e-9, (end - prepared) * 1e-9)


def split_pass(contender: Contender, batches: Sequence[Any]) -> Split:
    """Mean over the batches, of steps that are waited for."""
    steps = [split_step(contender, batch) for batch in batches]
    return Split(*(sum(column) / len(steps) for column in zip(*steps, strict=True)))


def train_pass(contender: Contender, batches: Sequence[Any]) -> None:
    """Steps that are not waited for, from the first graph to the end of the last update."""
    for batch in batches:
        contender.step(batch)
    contender.loss()


class Measured(NamedTuple):
    """One contender, a value per round: seconds of a step."""

    steps: list[float]
    hosts: list[float]
    computations: list[float]

    @property
    def shares(self) -> list[float]:
        """The host's share of a step that is waited for."""
        return [host / (host + computed) for host, computed in zip(self.hosts, self.computations, strict=True)]


def measure(
    contenders: Mapping[str, Contender], batches: Mapping[str, Sequence[Any]], rounds: int
) -> dict[str, Measured]:
    """Time all contenders, interleaved, on the batches that each has prepared."""
    splits: dict[str, list[Split]] = {name: [] for name in contenders}

    def take_apart(name: str) -> None:
        splits[name].append(split_pass(contenders[name], batches[name]))

    seconds = harness.interleave(
        {name: partial(train_pass, contender, batches[name]) for name, contender in contenders.items()}
        | {f"{name}, apart": partial(take_apart, name) for name in contenders},
        rounds,
    )
    return {
        name: Measured([s / len(batches[name]) for s in seconds[name]], *map(list, zip(*splits[name], strict=True)))
        for name in contenders
    }


def report(
    bench: str,
    case: str,
    measured: Mapping[str, Measured],
    peer_name: Callable[[str], str],
    losses: Mapping[str, float],
) -> None:
    """A line for every program of vpps and every peer; one per contender where there is only one kind of them."""
    programs = {name: m for name, m in measured.items() if name.startswith("vpps")}
    peers = {name: m for name, m in measured.items() if name not in programs}
    for name, m in (programs or peers).items():
        own = {"program": name if programs else peer_name(name), **_parts(m), "loss": losses[name]}
        if not programs or not peers:
            harness.report(bench, case, m.steps, "s/step", **own)
            continue
        for peer, p in peers.items():
            theirs = {f"peer_{key}": value for key, value in (_parts(p) | {"loss": losses[peer]}).items()}
            harness.report(
                bench, case, m.steps, "s/step", (peer_name(peer), p.steps), higher_is_better=False, **own, **theirs,
                computation_ratio=harness.median_ratio(p.computations, m.computations),
            )  # fmt: skip


def _parts(m: Measured) -> dict[str, float]:
    return {
        "host": harness.median(m.hosts),
        "host_share": harness.median(m.shares),
        "computation": harness.median(m.computations),
    }
