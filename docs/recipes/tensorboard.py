"""Curves of a training: writes to TensorBoard if a writer is installed, else to a table in a file."""

from __future__ import annotations

import csv
from pathlib import Path

import vpps
from vpps.callbacks import Loop, ProgressBar, TensorBoard
from vpps.data import graphs_of_trees, synthetic_treebank
from vpps.zoo import TreeLSTMSentiment


class TableWriter:
    """Writes `scalars.csv` (tag, step, value), with the methods of a SummaryWriter that TensorBoard calls."""

    def __init__(self, folder: str) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._file = (Path(folder) / "scalars.csv").open("w", encoding="utf-8", newline="")
        self._rows = csv.writer(self._file)

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self._rows.writerow([tag, global_step, scalar_value])

    def close(self) -> None:
        self._file.close()


def curves(folder: str) -> TensorBoard:
    """Return the callback for an installed package, or print that a table replaces it."""
    try:
        return TensorBoard(folder)
    except ModuleNotFoundError as error:
        print(f"{error}; curves go to {folder}/scalars.csv")
        return TensorBoard(TableWriter(folder))


def main(folder: str = "runs/trees") -> tuple[list[float], int]:
    """Return the mean loss of every epoch, and the number of the last update."""
    trees = graphs_of_trees(synthetic_treebank(400, 1).train)
    model = vpps.Model(seed=1)
    network = TreeLSTMSentiment(model, len(trees.vocabularies["word"]), embedding=32, hidden=32)
    optimizer = vpps.Adam(lr=lambda update: 0.01 / update**0.5)
    losses = []
    with vpps.Handle(model, optimizer) as handle, Loop(handle, ProgressBar(steps=16), curves(folder)) as loop:
        for epoch in range(3):
            for batch in trees.batches(25, seed=1, epoch=epoch):
                graph = vpps.Graph()
                loop.step(graph, network.loss(graph, batch) * (1 / batch.n_vertices))
            losses.append(loop.finish_epoch()["loss"])
    print(f"{model.step} updates; loss from {losses[0]:.2f} to {losses[-1]:.2f}; see: tensorboard --logdir {folder}")
    return losses, model.step


if __name__ == "__main__":
    main()
