// Functions for vpps/planner/native/typed_graphs.py: run policies and learning on a graph given as arrays.
#pragma once

#include "learning.h"
#include "policies.h"

inline TypedGraph typed(const GraphInput& given)
{
    TypedGraph graph;
    const i64 *types = pointer<const i64>(given.types), *levels = pointer<const i64>(given.levels);
    const i64 *producers = pointer<const i64>(given.producers), *readers = pointer<const i64>(given.readers);
    graph.reset(given.n, given.n_types);
    graph.expect(given.n_edges);
    for (i64 v = 0; v < given.n; v++) {
        graph.type[v] = static_cast<i32>(types[v]);
        graph.level[v] = static_cast<i32>(levels[v]);
    }
    for (i64 e = 0; e < given.n_edges; e++)
        graph.add(static_cast<i32>(producers[e]), static_cast<i32>(readers[e]));
    return graph;
}

EXPORT i64 vpps_batches(const GraphInput* given, const char* policy, const i64* automaton, i64 n_automaton,
                        i64* sequence, i64* stages, BatchesResult* found)
{
    const PolicyRow* row = policy_named(policy);
    Numbers from(automaton, n_automaton);
    const Automaton learned = n_automaton ? Automaton(from) : Automaton();
    if (!row || !from.complete())
        return 0;
    TypedGraph graph = typed(*given);
    const std::unique_ptr<Policy> made = row->make();
    made->batch(graph, learned);
    const Execution& run = made->run;
    for (const Execution::Batch& batch : run.batches)
        *sequence++ = batch.type;
    for (i64 v = 0; v < graph.n; v++)
        stages[v] = run.stage(v);
    const auto n_batches = static_cast<i64>(run.batches.size()), n_steps = static_cast<i64>(run.steps().size());
    *found = {n_batches, run.n_stages, n_steps, made->unseen};
    return 1;
}

EXPORT void* vpps_learn(const GraphInput* given, const SettingsInput* settings, AutomatonResult* found)
{
    TypedGraph graph = typed(*given);
    const LearningResult learned = Learner(graph, *settings).learn();
    auto numbers = std::make_unique<std::vector<i64>>(learned.automaton.numbers());
    *found = {learned.trials, learned.n_steps, learned.n_stages, learned.bound, static_cast<i64>(numbers->size())};
    return numbers.release();
}

EXPORT void vpps_learned(void* learned, i64* numbers)
{
    const std::unique_ptr<std::vector<i64>> taken(static_cast<std::vector<i64>*>(learned));
    std::copy(taken->begin(), taken->end(), numbers);
}
