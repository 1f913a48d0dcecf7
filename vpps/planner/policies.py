"""Batching policies: in which stage every vertex of a graph runs. `native/policies/` runs them; here one is learned.

A **stage** is what runs together; the vertices of a cell in a stage are a **step**, a batch in the words of other
systems. What a persistent kernel pays for is barriers, so policies report stages beside batches.

Types of vertices are cells. Components of cells that read each other can be batched one after the other without loss
(`native/execution.h` has the proof). So cells are ranked by "reads from", cycles contracted; a cell on no cycle is one
batch; a recurrence of one cell is its levels; leaves come first and losses last, all of them at once. There is
something to choose only in recurrences of several cells - trees with two kinds of nodes, lattices:

    sinks-last      level by level, all its cells side by side: the fewest stages
    sufficient      the type of which the largest share of what waits for no other of its type is ready (lemma 2.1)
    critical        the type of the ready vertex at which the longest path begins
    fsm             as an automaton says, learned for this recurrence (ED-Batch 2.3): states are the types ready,
                    ranked as `critical` ranks them, or one of the paper's three encodings, with the phase or without
    depth, agenda   published baselines, on the whole graph: by level; the type of least mean depth first (DyNet)
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
"""Those that a handle takes by name."""

MOST_WORK = 50_000_000
"""Vertices times types of all trials of learning a recurrence, unless the user says how many: seconds."""


def learn_policy(
    graphs: Graph | Iterable[Graph], *, encoding: str = "critical", trials: int | None = None, seed: int = 1
) -> LearnedPolicy:
    """Learn in which order cells that read each other in a cycle are batched, such as the characters and words of a
    lattice: `vpps.Handle(model, policy=vpps.learn_policy(graph))`.

    For each such recurrence Q-learning finds a finite-state machine that makes few batches of the graphs (ED-Batch,
    section 2: Chen et al., "ED-Batch: Efficient Automatic Batching of Dynamic Neural Networks via Learned Finite State
    Machines", ICML 2023). Losses are the same with every policy, but gradients of weights are summed
    in the order in which vertices run, so their last bits differ.

    Args:
        graphs: what to learn from, such as the first mini-batch, as the handle will get it; several count as one.
        encoding: what a machine sees of the vertices that are ready: "base" (their cells), "max" (and of which cell
            most are), "sort" (cells by falling number), or "critical" (as policy "critical" prefers them, the least
            batches on lattices). The first three are those of the paper.
        trials: how often the graphs are batched to learn from it, at most; it ends as soon as no order has fewer
            batches. Default: 1,000, and of large graphs fewer, so that it takes seconds.
        seed: of chance. The same graphs, options and seed give the same policy on all machines.

    Returns:
        What was learned. It can be pickled; a training handle that is given it leaves it with the model
        (`model.learned_policy`), whose checkpoints keep it.

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
    """What `learn_policy` returns, with all settings of learning.

    Args:
        most_work: vertices times types of all trials for a recurrence, at most.
    """
    cells_of: dict[tuple[str, ...], tuple[str, ...]] = {}
    found: dict[tuple[str, ...], list[TypedGraph]] = {}
    for graph in graphs:
        topology = Topology(graph)
        for members in topology.recurrences:
            # As the user made them: inference goes without outputs that nothing reads.
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
