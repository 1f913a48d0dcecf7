"""What training keeps beside weights and moments; owned by the Model, so that it outlives handles and is saved."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vpps.values import Float32


@dataclass
class AccumulatedGradients:
    """Sums of the gradients of calls `fb(accumulate=True)`, which no update has used yet.

    Attributes:
        calls: number of them.
        gradients: by parameter name; of a lookup table only the rows that have one, in the order of `rows`.
        rows: their numbers, sorted, by the name of the table.
    """

    calls: int
    gradients: dict[str, Float32] = field(default_factory=dict)
    rows: dict[str, NDArray[np.int64]] = field(default_factory=dict)
