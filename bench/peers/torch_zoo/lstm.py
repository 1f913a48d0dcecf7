"""LSTM layers in PyTorch's own `nn.LSTM`, over whole sequences, padded or packed, whichever is faster."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pad_sequence

from peers.torch_zoo.program import TorchProgram

State = tuple[Tensor, Tensor]
"""h and c, (sequences, hidden) each."""

PARTS = {"W": "weight_ih_l0", "U": "weight_hh_l0", "b": "bias_ih_l0"}

MOST_PADDING = 1.6
"""Largest ratio of padded to real words at which to pad. A padded batch runs in one call of oneDNN. A packed one runs
step by step in as many sizes as there are lengths. Measured on one core (hidden size 256): at 1.35, padding takes two
thirds of the time; at 1.7, a tenth more."""


class LstmProgram(TorchProgram):
    """A network with layers of `vpps.nn.LSTM`, by name.

    PyTorch stacks gates in another order, i f u o. Weights are stored in that order, as in an engineer's program;
    gradients are returned in vpps's order. PyTorch's second bias is zero and not trained.
    """

    lstms: tuple[str, ...] = ("lstm",)

    def __init__(self, task: Any, per_node: bool = False) -> None:
        super().__init__(task, per_node)
        self.layers: dict[str, torch.nn.LSTM] = {}
        for name in self.lstms:
            hidden, size = self.weights[f"{name}/U"].shape[1], self.weights[f"{name}/W"].shape[1]
            layer = self.layers[name] = torch.nn.LSTM(size, hidden, batch_first=True)
            torch.nn.init.zeros_(layer.bias_hh_l0).requires_grad_(False)
            for ours, theirs in PARTS.items():
                weight = getattr(layer, theirs)
                weight.data.copy_(_swapped(self.weights[f"{name}/{ours}"].detach()))
                self.weights[f"{name}/{ours}"] = weight

    def gradients(self, batch: Any) -> tuple[float, dict[str, NDArray[Any]]]:
        loss, found = super().gradients(batch)
        for key in (f"{name}/{part}" for name in self.lstms for part in PARTS):
            found[key] = _swapped(torch.from_numpy(found[key])).numpy()
        return loss, found

    def run_lstm(
        self, name: str, x: Tensor, sizes: NDArray[np.int64], begin: State | None = None, end: bool = False
    ) -> tuple[Tensor, State | None]:
        """Run a layer over concatenated sequences.

        Args:
            x: (n, input), the inputs of all sequences.
            sizes: their lengths.
            begin: the states before the first words; zeros by default.
            end: True to return the states after the last words, which padding would spoil.

        Returns:
            h of all inputs, (n, hidden), in the same order; and the states, or None.
        """
        if self.per_node:
            return self._word_by_word(name, x, sizes, begin)
        layer, longest = self.layers[name], int(sizes.max())
        states = None if begin is None else (begin[0][None], begin[1][None])
        if longest * len(sizes) == len(x):
            h, last = layer(x.view(len(sizes), longest, -1), states)
            return h.reshape(len(x), -1), (last[0][0], last[1][0])
        if not end and longest * len(sizes) <= MOST_PADDING * len(x):
            h, _ = layer(pad_sequence(x.split(sizes.tolist()), batch_first=True), states)
            present = np.flatnonzero(np.arange(longest) < sizes[:, None])
            return h.reshape(-1, h.shape[2]).index_select(0, torch.from_numpy(present)), None
        # Packed: the first words of all sequences, the second words, ...; longer sequences come first.
        order = np.argsort(-sizes, kind="stable")
        starts = (np.cumsum(sizes) - sizes)[order]
        step, sequence = np.nonzero(np.arange(longest)[:, None] < sizes[order])
        rows = starts[sequence] + step
        back = np.empty_like(rows)
        back[rows] = np.arange(len(rows))
        sizes_of_steps, by_length = torch.from_numpy(np.bincount(step)), torch.from_numpy(order)
        if begin is not None:
            states = begin[0][by_length][None], begin[1][by_length][None]
        packed, last = layer(PackedSequence(x.index_select(0, torch.from_numpy(rows)), sizes_of_steps), states)
        place = torch.from_numpy(np.argsort(order))
        return packed.data.index_select(0, torch.from_numpy(back)), (last[0][0][place], last[1][0][place])

    def _word_by_word(
        self, name: str, x: Tensor, sizes: NDArray[np.int64], begin: State | None
    ) -> tuple[Tensor, State]:
        W, U, b = (self.weights[f"{name}/{part}"] for part in PARTS)
        hs, ends = [], []
        for k, words in enumerate(x.split(sizes.tolist())):
            h, c = (x.new_zeros(U.shape[1]),) * 2 if begin is None else (begin[0][k], begin[1][k])
            for word in words:
                i, f, u, o = (torch.mv(W, word) + torch.mv(U, h) + b).chunk(4)
                c = i.sigmoid() * u.tanh() + f.sigmoid() * c
                h = o.sigmoid() * c.tanh()
                hs.append(h)
            ends.append((h, c))
        return torch.stack(hs), (torch.stack([h for h, _ in ends]), torch.stack([c for _, c in ends]))


def _swapped(gates: Tensor) -> Tensor:
    """Convert gates between vpps's order, i f o u, and PyTorch's, i f u o."""
    i, f, o, u = gates.chunk(4)
    return torch.cat([i, f, u, o])
