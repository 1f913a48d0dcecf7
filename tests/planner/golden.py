"""Hashes of scripts: random graphs and all tasks of the zoo, each planned in the configurations that golden.json lists.

`python -m tests.planner.golden` rewrites the hashes of the listed configurations, and lists configurations for examples
without any. A change that must not affect scripts is right if no hash changes. To remove an option, delete its rows; no
other row may change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

import numpy as np

import vpps
from tests.fuzz import graphs
from tests.planner.launches import MACHINES, Configuration, Example, draw, parse, plans
from tests.zoo.cases import CASES
from vpps.planner.native.policy_table import POLICIES

FILE = Path(__file__).with_name("golden.json")
RANDOM = 60  # number of random graphs
EACH = 3  # configurations per machine in which a graph is planned

NAMES = [*(f"random {n}" for n in range(RANDOM)), *CASES]


@cache
def example(name: str) -> Example:
    """Return one of `NAMES`."""
    if name in CASES:
        task = CASES[name].make()
        graph, batch = vpps.Graph(), task.train[:2]
        loss = task.loss(graph, batch)
        return Example(task.model, graph, loss, list(task.outputs(graph, batch))[:20])
    model, graph, used, loss = graphs.draw(Random(int(name.split()[1]))).build()
    return Example(model, graph, loss, used)


@cache
def golden() -> dict[str, dict[str, str]]:
    """Return the hashes by example and configuration."""
    found: dict[str, dict[str, str]] = json.loads(FILE.read_text())
    return found


def configurations(name: str) -> list[Configuration]:
    """Yield the configurations of an example."""
    return [parse(text) for text in golden()[name]]


def new_configurations(name: str) -> Iterator[Configuration]:
    """Yield some configurations for every machine; all examples together use every policy many times on each."""
    random = Random(name)
    for machine in MACHINES:
        for policy in random.sample(list(POLICIES), EACH):
            yield draw(random, machine, policy)


def hashed(name: str, c: Configuration) -> str:
    """Hash everything that launches depend on."""
    found = hashlib.sha256()
    for plan in plans(example(name), c):
        facts = plan.pool_floats, plan.loss_slot, plan.n_barriers, sorted(plan.instructions)
        found.update(plan.script.tobytes())
        found.update(f"{str(facts)[:-1]}, Continuation(products=(), entries=0))".encode())  # format of stored rows
        found.update(np.asarray(plan.addresses, np.int64).tobytes())
    return found.hexdigest()[:8]


def main() -> None:
    """Rewrite all the hashes."""
    listed = {name: configurations(name) if name in golden() else new_configurations(name) for name in NAMES}
    hashes = {name: {str(c): hashed(name, c) for c in given} for name, given in listed.items()}
    FILE.write_text(json.dumps(hashes, indent=0) + "\n")
    print(f"wrote {FILE}")


if __name__ == "__main__":
    main()
