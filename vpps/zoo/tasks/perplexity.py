"""What language models and translators are judged by."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


def perplexity(losses: Iterable[NDArray[np.float32]]) -> float:
    """The exponential of the mean cross entropy of all words, given that of the words of each batch.

    It is infinite where training has diverged so far that no float holds it.
    """
    total, n = 0.0, 0
    for of_batch in losses:
        total += float(of_batch.sum(dtype=np.float64))
        n += len(of_batch)
    with np.errstate(over="ignore"):
        return float(np.exp(total / n))
