"""Learns a machine for a recurrence from one graph: tabular N-step Q-learning (ED-Batch, 2.3).

A trial batches the whole graph once. In every state it takes the action of the greatest value, or with probability
epsilon any; where none has been tried, what policy `critical` would do, or `sufficient` where states do not rank types.
After the trial the value of each action that it took moves towards the sum of the next N rewards and the best value N
steps later, last action first.

A state does not tell everything about a frontier, so values go up and down, and so do greedy policies made of them.
They are tried out now and then, and the best one is kept, not the last; the first is what a trial did before anything
was learned.

The same seed gives the same machine, on all machines: doubles are added in a fixed order, and chance is splitmix64
(Steele, Lea and Flood 2014).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from vpps.plan.policies.batching import Batches, run
from vpps.plan.policies.cost import Costs
from vpps.plan.policies.frontier import Frontier, Ranks, Subgraphs, Wiring, nearest
from vpps.plan.policies.machine import Encoding, Machine, State
from vpps.plan.policies.typed_graph import TypedGraph


@dataclass(frozen=True, slots=True)
class Settings:
    """Hyper-parameters of learning.

    Attributes:
        encoding: of states.
        reward: "batches": -1 for each, and `alpha` times the part of its type's first vertices that it runs (ED-Batch,
            equation 1). "time": minus the time that it takes by the model of costs, in barriers.
        alpha: see there.
        horizon: N, over how many batches rewards are summed before values stand for the rest.
        rate: by how much of the difference a value moves.
        epsilon, least_epsilon, decay: probability of any action in the first trial, in the last ones, and the factor
            from trial to trial.
        trials: at most.
        check_every: trials between two trials of the greedy policy; where it attains the lower bound, learning ends.
        seed: of chance.
    """

    encoding: Encoding = field(default_factory=Encoding)
    reward: str = "batches"
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

    machine: Machine
    trials: int
    seconds: float
    batches: int
    stages: int
    lower_bound: int


class SplitMix64:
    """A generator of 64-bit numbers."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def next(self) -> int:
        """The next number."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
        return z ^ (z >> 31)

    def uniform(self) -> float:
        """The next number of [0, 1), a multiple of 2**-53."""
        return (self.next() >> 11) * 2.0**-53


_MASK = (1 << 64) - 1


class Values:
    """What each action that was tried is worth, by state."""

    def __init__(self) -> None:
        self._of: dict[State, dict[int, float]] = {}

    def best(self, state: State) -> int | None:
        """The action of the greatest value, of equal ones the smallest type; None where none has been tried."""
        values = self._of.get(state)
        return None if values is None else min(values, key=lambda a: (-values[a], a))

    def greatest(self, state: State) -> float:
        """The value of that action."""
        return max(self._of[state].values())

    def move(self, state: State, a: int, target: float, rate: float) -> None:
        """Move a value towards a target; the first one is the value."""
        values = self._of.setdefault(state, {})
        before = values.get(a)
        values[a] = target if before is None else before + rate * (target - before)

    def machine(self, encoding: Encoding) -> Machine:
        """The greedy policy."""
        table: dict[State, int] = {}
        for state in self._of:
            best = self.best(state)
            assert best is not None
            table[state] = best
        return Machine(encoding, table)


@dataclass(frozen=True, slots=True)
class Start:
    """What is known of a graph of which nothing has run: made once for all runs over it.

    Attributes:
        ranks: where states need them.
    """

    wiring: Wiring
    subgraphs: Subgraphs
    ranks: Ranks | None

    @classmethod
    def of(cls, graph: TypedGraph, encoding: Encoding) -> Start:
        """Of a graph."""
        wiring = Wiring(graph)
        frontier = Frontier(wiring)
        return cls(wiring, Subgraphs(frontier), encoding.ranks_of(frontier))


def batches_of(wiring: Wiring, machine: Machine) -> tuple[Batches, int]:
    """Batches of a graph by a machine, and how many of them began in a state that the machine does not know: then the
    type is chosen as by policy `critical`, or `sufficient` where states do not rank types."""
    unseen = 0
    subgraphs: Subgraphs | None = None  # few graphs need it
    ranks = machine.encoding.ranks_of(Frontier(wiring))

    def choose(frontier: Frontier) -> int:
        nonlocal unseen, subgraphs
        state = machine.encoding.state(frontier, ranks)
        a = machine.table.get(state)
        if a is not None:
            return a
        unseen += 1
        if ranks is not None:
            return state[1]
        if subgraphs is None:
            subgraphs = Subgraphs(frontier)
        return nearest(frontier, subgraphs)

    def executed(frontier: Frontier, a: int, batch: list[int]) -> None:
        if subgraphs is not None:
            subgraphs.executed(a, batch)
        if ranks is not None:
            ranks.executed(a, frontier.freed)

    return run(wiring, choose, executed), unseen


def learn(graph: TypedGraph, settings: Settings, costs: Costs) -> Learned:
    """Learn a machine for a typed graph.

    Args:
        costs: of its types, for the reward of time.
    """
    began = time.perf_counter()
    encoding, by_time = settings.encoding, settings.reward == "time"
    start, bound = Start.of(graph, encoding), graph.lower_bound
    chance, values = SplitMix64(settings.seed), Values()
    best: tuple[tuple[float, ...], Machine, Batches] | None = None
    trial, epsilon = 0, settings.epsilon
    untried = _trial(start, values, 0.0, chance, settings, costs)
    machine = Machine(encoding, {state: a for state, a, _ in untried})
    while True:
        batches, _ = batches_of(start.wiring, machine)
        loss = (costs.seconds(graph, batches.stages),) if by_time else (batches.n_steps, batches.n_stages)
        if best is None or loss < best[0]:
            best = loss, machine, batches
        if trial >= settings.trials or (batches.n_steps == bound and not by_time):
            break
        for _ in range(min(settings.check_every, settings.trials - trial)):
            trial += 1
            _learn_from(_trial(start, values, epsilon, chance, settings, costs), values, settings)
            epsilon = max(settings.least_epsilon, epsilon * settings.decay)
        machine = values.machine(encoding)
    _, machine, batches = best
    return Learned(machine, trial, time.perf_counter() - began, batches.n_steps, batches.n_stages, bound)


Taken = tuple[State, int, float]
"""A step of a trial: state, action, reward."""


def _trial(
    start: Start, values: Values, epsilon: float, chance: SplitMix64, settings: Settings, costs: Costs
) -> list[Taken]:
    wiring, encoding = start.wiring, settings.encoding
    frontier, subgraphs = Frontier(wiring), start.subgraphs.copy()
    ranks = start.ranks.copy() if start.ranks is not None else None
    by_time = settings.reward == "time"
    taken: list[Taken] = []
    while frontier.executed < wiring.n:
        types, state = frontier.types, encoding.state(frontier, ranks)
        a: int | None = types[0]
        if len(types) > 1:
            if chance.uniform() < epsilon:
                a = types[chance.next() % len(types)]
            else:
                a = values.best(state)
                if a is None:
                    a = state[1] if ranks is not None else nearest(frontier, subgraphs)
        assert a is not None
        reward = -1.0 + settings.alpha * (len(frontier.ready[a]) / subgraphs.counts[a])
        before = frontier.n_stages
        batch = frontier.execute(a)
        subgraphs.executed(a, batch)
        if ranks is not None:
            ranks.executed(a, frontier.freed)
        if by_time:
            reward = -costs.alone(a, len(batch), frontier.n_stages > before)
        taken.append((state, a, reward))
    return taken


def _learn_from(taken: list[Taken], values: Values, settings: Settings) -> None:
    sums = [0.0] * (len(taken) + 1)  # of a step's reward and all later ones
    for t in range(len(taken) - 1, -1, -1):
        state, a, reward = taken[t]
        sums[t] = reward + sums[t + 1]
        after = t + settings.horizon
        target = sums[t]
        if after < len(taken):
            target = (sums[t] - sums[after]) + values.greatest(taken[after][0])
        values.move(state, a, target, settings.rate)


Learn = Callable[[TypedGraph, Settings, Costs], Learned]
"""What `learn` is; compiled code does the same."""
