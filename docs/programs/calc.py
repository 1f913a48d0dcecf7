"""Expressions of digits, computed by a recursive network: a task with all options of vpps-train."""

from pathlib import Path

import vpps
from vpps.cli.train import main_of
from vpps.data import GraphBatch, GraphSet
from vpps.nn import Linear
from vpps.zoo import Settings, Task


class Calc(Task[GraphBatch]):
    """Train a calculator modulo 5."""

    name, unit, training = "calc", "expression", {"lr": 0.003, "epochs": 4}
    data_help = "A folder with train.graphs and dev.graphs."

    def __init__(self, settings: Settings, state: object = None) -> None:
        folder = settings.data or Path(".")
        self.train = train = GraphSet.load(folder / "train.graphs")
        self.dev = GraphSet.load(folder / "dev.graphs")
        self.model = vpps.Model(seed=settings.seed)
        self.digits = self.model.lookup("digits", (10, 64))
        self.signs = self.model.lookup("signs", (len(train.vocabularies["op"]), 64))
        self.inside = Linear(self.model, 192, 64, name="inside")
        self.output = Linear(self.model, 64, 5, name="output")

    @vpps.cell
    def num(self, digit):
        return vpps.lookup(self.digits, digit)

    @vpps.cell
    def op(self, op, left, right):
        return vpps.tanh(self.inside(vpps.concat([vpps.lookup(self.signs, op), left, right])))

    def outputs(self, graph, batch):
        inputs = {"digit": batch["digit"], "op": batch["op"]}
        h = graph.map({"num": self.num, "op": self.op}, **batch.structure, inputs=inputs)
        return self.output(h[batch.roots])

    def loss(self, graph, batch):
        return vpps.sum(vpps.cross_entropy(self.outputs(graph, batch), batch["value"]))

    def units(self, batch):
        return len(batch)

    def scores(self, results):
        right = [logits.argmax(1) == batch["value"] for batch, logits in results]
        return {"dev accuracy": sum(r.sum() for r in right) / len(self.dev)}


if __name__ == "__main__":
    main_of(Calc)
