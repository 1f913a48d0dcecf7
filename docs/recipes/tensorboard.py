"""Curves of a training: writes to TensorBoard if a writer is installed, else to a table in a file."""

from __future__ import annotations

import csv
import importlib
from pathlib import Path
from typing import Any

import vpps
from vpps.data import graphs_of_trees, synthetic_treebank
from vpps.zoo import TreeLSTMSentiment


class TableWriter:
    """Writes `scalars.csv` (tag, step, value), with the methods of a SummaryWriter that this program uses."""

    def __init__(self, folder: str) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._file = (Path(folder) / "scalars.csv").open("w", encoding="utf-8", newline="")
        self._rows = csv.writer(self._file)

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self._rows.writerow([tag, global_step, scalar_value])

    def close(self) -> None:
        self._file.close()


def open_writer(folder: str) -> Any:
    """Return a writer of an installed package for TensorBoard, or print that a table replaces it."""
    for package in ("tensorboardX", "torch.utils.tensorboard"):
        try:
            return importlib.import_module(package).SummaryWriter(folder)
        except ImportError:
            pass
    print(f"no writer for TensorBoard is installed (pip install tensorboardX): curves go to {folder}/scalars.csv")
    return TableWriter(folder)


def main(folder: str = "runs/trees") -> tuple[list[float], int]:
    """Return the written losses and the number of the last update."""
    trees = graphs_of_trees(synthetic_treebank(400, 1).train)
    model = vpps.Model(seed=1)
    network = TreeLSTMSentiment(model, len(trees.vocabularies["word"]), embedding=32, hidden=32)
    optimizer = vpps.Adam(lr=lambda update: 0.01 / update**0.5)
    losses = []
    writer = open_writer(folder)
    with vpps.Handle(model, optimizer) as handle:
        for batch in trees.batches(25, seed=1, epoch=0):
            graph = vpps.Graph()
            loss = handle.fb(graph, network.loss(graph, batch) * (1 / batch.n_vertices))  # of the update before
            if model.step > 1:
                losses.append(loss)
                writer.add_scalar("loss/train", loss, model.step - 1)
            writer.add_scalar("rate", optimizer.at(model.step, "words").rate, model.step)
        writer.add_scalar("loss/train", handle.sync_get_latest_loss(), model.step)
    writer.close()
    print(f"{model.step} updates; loss from {losses[0]:.2f} to {losses[-1]:.2f}; see: tensorboard --logdir {folder}")
    return losses, model.step


if __name__ == "__main__":
    main()
