"""A model and a task as a user would write them: what logic circuits compute, graphs of any fan-in.

Run as a program by test_own_task.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import vpps
from vpps.cli.train import main_of
from vpps.data import GraphBatch, read_jsonl
from vpps.nn import Linear
from vpps.zoo.task import Settings, Task, setting


class Circuits:
    """A state per gate, from those of the gates that it reads."""

    def __init__(self, model: vpps.Model, n_gates: int, n_values: int, hidden: int) -> None:
        self.gates = model.lookup("gates", (n_gates, hidden))
        self.update = Linear(model, 3 * hidden, hidden, name="update")
        self.output = Linear(model, hidden, n_values, name="output")

    @vpps.cell
    def gate(self, gate: int) -> vpps.Expression:
        inputs = vpps.gather()
        x = vpps.concat([vpps.lookup(self.gates, gate), vpps.sum(inputs), vpps.max(inputs)])
        return vpps.tanh(self.update(x))

    def logits(self, graph: vpps.Graph, batch: GraphBatch) -> Any:
        return self.output(graph.map(self.gate, **batch.structure, inputs={"gate": batch["gate"]}))


@dataclass(frozen=True, kw_only=True)
class CircuitSettings(Settings):
    data: Path = setting(Path("circuits"), "A folder with train.jsonl and dev.jsonl.")
    hidden: int = setting(24, "Length of a gate's state.", min=1, shapes_model=True)


class CircuitTask(Task[GraphBatch]):
    """Train a network to compute what circuits compute."""

    name = "circuits"
    settings_type = CircuitSettings
    data_help = "A folder with train.jsonl and dev.jsonl."
    unit = "gate"

    def __init__(self, settings: CircuitSettings, state: Mapping[str, Any] | None = None) -> None:
        train = read_jsonl(settings.data / "train.jsonl", classes=["value"])
        self.train = train.subset(slice(settings.limit))
        self.dev = read_jsonl(settings.data / "dev.jsonl", like=train)
        self.model = vpps.Model(seed=settings.seed)
        n_gates, n_values = len(train.vocabularies["gate"]), len(train.classes["value"])
        self.network = Circuits(self.model, n_gates, n_values, settings.hidden)

    def loss(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Expression:
        return vpps.sum(vpps.cross_entropy(self.network.logits(graph, batch), batch["value"]))

    def units(self, batch: GraphBatch) -> int:
        return batch.n_vertices

    def outputs(self, graph: vpps.Graph, batch: GraphBatch) -> Any:
        return self.network.logits(graph, batch)

    def scores(self, results: Iterable[tuple[GraphBatch, Any]]) -> dict[str, float]:
        right = n = 0
        for batch, logits in results:
            right += int((logits.argmax(axis=1) == batch["value"]).sum())
            n += batch.n_vertices
        return {"dev accuracy": right / n}


if __name__ == "__main__":
    main_of(CircuitTask)
