"""How large a Tree-LSTM may be whose weights stay on the chip, per GPU and precision (vpps/placement/onchip)."""

from __future__ import annotations

from dataclasses import replace

from tables import table

import vpps
from vpps.compiler.arrangement import matrices_of
from vpps.data import graphs_of_trees, synthetic_treebank
from vpps.ops.precision import PRECISIONS
from vpps.placement.onchip import DEVICES, capacity
from vpps.placement.onchip.device import TENSOR_CORES
from vpps.zoo import TreeLSTMSentiment

UNITS = 256


def markdown() -> str:
    """A row per GPU, a column per precision: units with which all weights are in registers / on the chip."""
    trees = graphs_of_trees(synthetic_treebank(n_train=1, n_dev=0).train, min_count=1)
    model, graph = vpps.Model(seed=1), vpps.Graph()
    net = TreeLSTMSentiment(model, len(trees.vocabularies["word"]), embedding=UNITS, hidden=UNITS)
    net.loss(graph, trees[:])
    matrices = matrices_of(graph.blocks).values()
    rows = []
    for device in DEVICES.values():
        if device.sm >= TENSOR_CORES:
            found = [
                capacity([replace(m, element=p.element) for m in matrices], device, UNITS) for p in PRECISIONS.values()
            ]
            rows.append([device.name, *(f"{in_registers} / {on_chip}" for in_registers, on_chip in found)])
    return table(["GPU", *PRECISIONS], rows)
