"""Batching policies (`native/policies/`) choose the stage in which each vertex of a graph runs; one policy is learned.

A **stage** is a set of vertices that run together. The vertices of one cell in a stage are a **step**, which other
systems call a batch. In a persistent kernel, barriers cost time, so policies report stages as well as batches.

The type of a vertex is its cell. Components of cells that read each other can be batched one after the other without
loss (`native/execution.h` has the proof). So cells are ranked topologically by "reads from", with cycles contracted. A
cell on no cycle takes one batch; a recurrence of one cell takes one batch per level. Leaves come first and losses last,
each in one batch. Only recurrences of several cells need a choice, such as lattices or trees with two kinds of nodes:

    sinks-last      level by level, all cells of a level together: the fewest stages
    sufficient the type with the largest ready share of the vertices that wait for no other of their type (lemma 2.1)
    critical the type of the ready vertex that starts the longest path fsm the choice of an automaton, learned for this
    recurrence (ED-Batch 2.3). States are the ready types,
                    ranked as in `critical`, or one of the paper's three encodings, with or without the phase
    depth, agenda   published baselines on the whole graph: by level; the type with the least mean depth first (DyNet)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from vpps.errors import HandleError
from vpps.graph.graph import Graph
from vpps.model.learned_policy import ENCODINGS, Encoding, LearnedPolicy, LearnedRecurrence
from vpps.planner.native.policy_table import POLICIES
from vpps.planner.native.typed_graphs import LearningSettings, TypedGraph, learn
from vpps.record.topology import Topology
from vpps.record.trace import digest_of
from vpps.values import as_index

NAMED = tuple(name for name, row in POLICIES.items() if not row.learned)
"""Policies that a handle accepts by name."""

MOST_WORK = 50_000_000
"""Limit of vertices times types, over all trials per recurrence, if the user sets no number of trials: seconds."""


def learn_policy(
    graphs: Graph | Iterable[Graph], *, encoding: str = "critical", trials: int | None = None, seed: int = 1
) -> LearnedPolicy:
    """Learn the batching order of cells that read each other in a cycle, such as the characters and words of a
    lattice: `vpps.Handle(model, policy=vpps.learn_policy(graph))`.

    For each such recurrence, Q-learning finds a finite-state machine that needs few batches for the graphs (ED-Batch,
    section 2: Chen et al., "ED-Batch: Efficient Automatic Batching of Dynamic Neural Networks via Learned Finite State
    Machines", ICML 2023). Losses are the same with every policy. Weight gradients are summed in the order in which
    vertices run, so their last bits differ.

    Args:
        graphs: graphs to learn from, such as the first mini-batch, as the handle will get them; several are combined.
        encoding: how a machine sees the ready vertices: "base" (their cells), "max" (also the most frequent cell),
            "sort" (cells by decreasing number of vertices), or "critical" (cells in the order of policy "critical"; the
            fewest batches on lattices). The first three come from the paper.
        trials: maximum number of times to batch the graphs during learning. Learning ends early if no order can have
            fewer batches. Default: 1,000, or fewer for large graphs, so that learning takes seconds.
        seed: random seed. The same graphs, options and seed give the same policy on all machines.

    Returns:
        The learned policy. It can be pickled. A training handle stores it in the model (`model.learned_policy`), and
        the model's checkpoints keep it.

    Raises:
        HandleError: an argument is wrong.
    """
    try:
        several = iter([graphs] if isinstance(graphs, Graph) else graphs)
    except TypeError:
        several = iter(())
    given = list(several)
    if not given or not all(isinstance(graph, Graph) and len(graph) for graph in given):
        raise HandleError(f"learn_policy({graphs!r}): expected a vpps.Graph, or several, with something recorded")
    if not isinstance(encoding, str) or encoding not in ENCODINGS:
        raise HandleError(f"learn_policy(encoding={encoding!r}): expected one of {', '.join(ENCODINGS)}")
    n_trials, chance = None if trials is None else as_index(trials), as_index(seed)
    if trials is not None and (n_trials is None or n_trials < 0):
        raise HandleError(f"learn_policy(trials={trials!r}): expected 0 or a positive int")
    if chance is None:
        raise HandleError(f"learn_policy(seed={seed!r}): expected an int")
    settings = LearningSettings(Encoding(encoding), seed=chance % 2**64)
    if n_trials is None:
        return learned_from(given, settings, MOST_WORK)
    return learned_from(given, replace(settings, trials=n_trials))


def learned_from(graphs: Iterable[Graph], settings: LearningSettings, most_work: int = 2**62) -> LearnedPolicy:
    """Learn a policy like `learn_policy`, with all settings.

    Args:
        most_work: limit on vertices times types, summed over all trials for a recurrence.
    """
    cells_of: dict[tuple[str, ...], tuple[str, ...]] = {}
    found: dict[tuple[str, ...], list[TypedGraph]] = {}
    for graph in graphs:
        topology = Topology(graph)
        for members in topology.recurrences:
            # Patterns as the user defined them: inference drops outputs that nothing reads.
            cells = {number: topology.blocks[number].block.pattern for number in members}
            digest = {number: digest_of(cell) for number, cell in cells.items()}
            order = sorted(members, key=digest.__getitem__)
            digests = tuple(digest[number] for number in order)
            cells_of[digests] = tuple(cells[number].name for number in order)
            found.setdefault(digests, []).append(TypedGraph.of(topology, order))
    recurrences = []
    for digests, typed_graphs in found.items():
        typed = TypedGraph.joined(typed_graphs)
        trials = min(settings.trials, most_work // (typed.n * typed.n_types))
        learned = learn(typed, replace(settings, trials=trials))
        facts = learned.automaton, learned.batches, learned.lower_bound
        recurrences.append(LearnedRecurrence(cells_of[digests], digests, *facts))
    return LearnedPolicy(tuple(recurrences))
