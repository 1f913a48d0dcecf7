"""Random programs over the three signs -1, 0 and 1, whose result is to be told: nothing to download.

A program is a graph in the form of `read_programs`: one vertex for each constant, however often it is used, and one for
each call, which reads its arguments in order; results may be used again. The functions are

    neg a          -a                                  sum a b ...    the sign of the sum
    sub a b        the sign of a - b                   max a b ...    the largest
    mul a b ...    the product                         min a b ...    the smallest

The label is the result of the last call plus 1. As `sub` is not symmetric and the functions nest, neither counting the
vertices nor summing up what is read suffices.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import numpy as np

from vpps.data.chance import pick
from vpps.data.graphset import GraphSet
from vpps.data.readers.programs import KINDS
from vpps.data.vocabulary import UNK, Vocabulary

SIGNS = (-1, 0, 1)
CALLS = range(4, 13)
MOST_ARGUMENTS = 4


def _sign(x: int) -> int:
    return (x > 0) - (x < 0)


FUNCTIONS: dict[str, tuple[Callable[[Sequence[int]], int], range]] = {
    "neg": (lambda a: -a[0], range(1, 2)),
    "sub": (lambda a: _sign(a[0] - a[1]), range(2, 3)),
    "mul": (math.prod, range(2, 4)),
    "sum": (lambda a: _sign(sum(a)), range(2, MOST_ARGUMENTS + 1)),
    "max": (max, range(2, MOST_ARGUMENTS + 1)),
    "min": (min, range(2, MOST_ARGUMENTS + 1)),
}
"""What each computes, and how many arguments it is given."""


def synthetic_programs(n_train: int = 3000, n_dev: int = 400, seed: int = 1) -> tuple[GraphSet, GraphSet]:
    """Train and dev set; equal arguments give equal programs everywhere. Programs have 4 to 13 calls."""
    rng = random.Random(seed)
    train, dev = (_set_of([_program(rng) for _ in range(n)]) for n in (n_train, n_dev))
    return train, dev


Program = list[tuple[str, list[int]]]
"""A name and the vertices that are read, for every vertex; constants read nothing. The last one is the result."""


def result_of(program: Program) -> int:
    """What it computes."""
    values: list[int] = []
    for name, arguments in program:
        values.append(FUNCTIONS[name][0]([values[k] for k in arguments]) if arguments else int(name))
    return values[-1]


def _program(rng: random.Random) -> Program:
    program: Program = [(str(sign), []) for sign in SIGNS]
    unread = set(range(len(SIGNS)))
    names = list(FUNCTIONS)
    for _ in range(pick(rng, CALLS)):
        name = names[pick(rng, range(len(names)))]
        everything = range(len(program))
        arguments = [
            pick(rng, sorted(unread) if rng.random() < 0.6 else everything)
            for _ in range(pick(rng, FUNCTIONS[name][1]))
        ]
        unread = unread - set(arguments) | {len(program)}
        program.append((name, arguments))
    if len(unread) > 1:
        program.append(("sum", sorted(unread)))
    return program


def _set_of(programs: list[Program]) -> GraphSet:
    types = Vocabulary([UNK, "Constant", "Call"])
    names = Vocabulary([UNK, *map(str, SIGNS), *FUNCTIONS])
    vertices = [vertex for program in programs for vertex in program]
    counts = np.array([len(arguments) for _, arguments in vertices])
    return GraphSet(
        [len(program) for program in programs],
        (np.concatenate([[0], counts.cumsum()]), [k for _, arguments in vertices for k in arguments]),
        kind=counts > 0, kinds=KINDS,
        columns={
            "type": [types["Call" if arguments else "Constant"] for _, arguments in vertices],
            "name": [names[name] for name, _ in vertices],
        },
        graph_columns={"label": [1 + result_of(program) for program in programs]},
        vocabularies={"type": types, "name": names}, classes={"label": [str(sign) for sign in SIGNS]},
    )  # fmt: skip
