// What vpps/plan/native/policies.py calls: policies, and learning, on a graph given as arrays.
#pragma once

#include <memory>
#include "learning.h"

// vpps/plan/policies/typed_graph.py.
inline TypedGraph typed(const GivenGraph& given)
{
    TypedGraph graph;
    const i64 *types = pointer<const i64>(given.types), *levels = pointer<const i64>(given.levels);
    const i64 *ends = pointer<const i64>(given.reader_ends), *readers = pointer<const i64>(given.readers);
    graph.reset(given.n, given.n_types);
    graph.expect(ends[given.n]);
    for (i64 v = 0; v < given.n; v++) {
        graph.type[v] = static_cast<i32>(types[v]);
        graph.level[v] = static_cast<i32>(levels[v]);
        for (i64 e = ends[v]; e < ends[v + 1]; e++)
            graph.add(static_cast<i32>(v), static_cast<i32>(readers[e]));
    }
    return graph;
}

EXPORT i64 vpps_lower_bound(const GivenGraph* given)
{
    return typed(*given).lower_bound();
}

EXPORT i64 vpps_batches(const GivenGraph* given, PolicyCode policy, const i64* machine, i64 n_machine, i64* sequence,
                        i64* stages, FoundBatches* found)
{
    TypedGraph graph = typed(*given);
    Policies policies;
    Numbers from(machine, n_machine);
    const Machine fsm = policy == PolicyCode::FSM ? Machine(from) : Machine();
    if (!from.complete())
        return 0;
    policies.batch(graph, policy, fsm);
    const Execution& run = policies.run;
    for (const Execution::Batch& batch : run.batches)
        *sequence++ = batch.type;
    for (i64 v = 0; v < graph.n; v++)
        stages[v] = run.stage(v);
    const auto n_batches = static_cast<i64>(run.batches.size()), n_steps = static_cast<i64>(run.steps().size());
    *found = {n_batches, run.n_stages, n_steps, policies.unseen};
    return 1;
}

EXPORT void* vpps_learn(const GivenGraph* given, const GivenSettings* settings, const GivenCosts* costs,
                        FoundMachine* found)
{
    TypedGraph graph = typed(*given);
    auto learned = std::make_unique<Learned>(Learner(graph, *settings, *costs).learn());
    *found = {learned->trials, learned->n_steps, learned->n_stages, learned->bound, learned->machine.numbers(nullptr)};
    return learned.release();
}

EXPORT void vpps_learned(void* learned, i64* numbers)
{
    const std::unique_ptr<Learned> taken(static_cast<Learned*>(learned));
    taken->machine.numbers(numbers);
}
