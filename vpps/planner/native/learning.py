"""How a machine is learned for a recurrence, and what comes of it; `planner/native/learning.h` does it."""

from __future__ import annotations

from dataclasses import dataclass, field

from vpps.planner.native.automaton import Automaton, Encoding


@dataclass(frozen=True, slots=True)
class LearningSettings:
    """Hyper-parameters of learning.

    Attributes:
        encoding: of states.
        alpha: of the reward: -1 for each batch, and `alpha` times the part of its type's first vertices that it runs
            (ED-Batch, equation 1).
        horizon: N, over how many batches rewards are summed before values stand for the rest.
        rate: by how much of the difference a value moves.
        epsilon, least_epsilon, decay: probability of any action in the first trial, in the last ones, and the factor
            from trial to trial.
        trials: at most.
        check_every: trials between two trials of the greedy policy; where it attains the lower bound, learning ends.
        seed: of chance.
    """

    encoding: Encoding = field(default_factory=Encoding)
    alpha: float = 0.5
    horizon: int = 32
    rate: float = 0.05
    epsilon: float = 0.1
    least_epsilon: float = 0.01
    decay: float = 0.99
    trials: int = 1000
    check_every: int = 20
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Learned:
    """What came of it.

    Attributes:
        machine: the best one.
        trials: how many were made.
        seconds: that took.
        batches, stages: of the graph with it.
        lower_bound: of batches.
    """

    machine: Automaton
    trials: int
    seconds: float
    batches: int
    stages: int
    lower_bound: int
