"""What planners write: hashes of scripts for every policy, schedule, layout, number of groups, with and without cuBLAS,
for all targets; of random graphs and of all tasks of the zoo. `python -m tests.planner.golden` writes them anew.

A change of the planner that is not to change scripts is right where they stay; one that is to change them says why.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from random import Random

import numpy as np

import vpps
from tests.fuzz import graphs
from tests.planner.launches import MACHINES, Configuration, Example, plans
from tests.zoo.cases import CASES
from vpps.planner.policies import POLICIES
from vpps.planner.row_order import LAYOUTS
from vpps.script.products import Continuation

FILE = Path(__file__).with_name("golden.json")
RANDOM = 60  # random graphs
EACH = 3  # configurations of a machine in which one graph is planned


NAMES = [*(f"random {n}" for n in range(RANDOM)), *CASES]


@cache
def example(name: str) -> Example:
    """One of `NAMES`."""
    if name in CASES:
        task = CASES[name].make()
        graph, batch = vpps.Graph(), task.train[:2]
        loss = task.loss(graph, batch)
        return Example(task.model, graph, loss, list(task.outputs(graph, batch))[:20])
    model, graph, used, loss = graphs.draw(Random(int(name.split()[1]))).build()
    return Example(model, graph, loss, used)


def configurations(name: str) -> Iterator[Configuration]:
    """Those in which an example is planned: for every machine some, so that all examples have every one many times."""
    random = Random(name)
    for machine in MACHINES:
        for policy, layout in random.sample(list(product(POLICIES, LAYOUTS)), EACH):
            yield Configuration(*machine, policy, layout)


def hashed(name: str, c: Configuration) -> str:
    """Of all that launches depend on."""
    found = hashlib.sha256()
    for plan in plans(example(name), c, Random(f"{name} {c}")):
        continuation = plan.continuation or Continuation((), 0)
        facts = plan.pool_floats, plan.loss_slot, plan.n_barriers, sorted(plan.instructions), continuation
        found.update(plan.script.tobytes())
        # As classes were called when the hashes were written, by the planner that there was in NumPy.
        text = repr(facts).replace("Continuation(", "Sequel(").replace("PoolRows(", "Rows(")
        found.update(text.encode())
        found.update(np.asarray(plan.addresses, np.int64).tobytes())
    return found.hexdigest()[:8]


def hashes(name: str) -> str:
    """Of an example, in all its configurations."""
    return " ".join(hashed(name, c) for c in configurations(name))


def main() -> None:
    """Write all hashes."""
    FILE.write_text(json.dumps({name: hashes(name) for name in NAMES}, indent=0) + "\n")
    print(f"wrote {FILE}")


if __name__ == "__main__":
    main()
