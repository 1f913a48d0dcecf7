// What vpps/plan/native/policies.py calls: policies, and learning, on a graph given as arrays.
#pragma once

#include <memory>
#include "learning.h"

// vpps/plan/policies/typed_graph.py: types and levels of the vertices, the ends of their readers, and those.
struct GivenGraph {  // as in policies.py, class _Graph
    i64 n, n_types, types, levels, reader_ends, readers;
};

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

// No sequence of batches of a graph is shorter.
EXPORT i64 vpps_lower_bound(const GivenGraph* given)
{
    return typed(*given).lower_bound();
}

// Batches of a graph. Room for n each: type of each batch; stage of each vertex. `found`: how many batches, stages,
// steps, and steps in which the machine did not know its state. 0 where the numbers of the machine are not as expected.
EXPORT i64 vpps_batches(const GivenGraph* given, Policy policy, const i64* machine, i64 n_machine, i64* sequence,
                        i64* stages, i64* found)
{
    TypedGraph graph = typed(*given);
    Policies policies;
    Numbers from(machine, n_machine);
    const Machine fsm = policy == Policy::FSM ? Machine(from) : Machine();
    if (!from.complete())
        return 0;
    policies.batch(graph, policy, fsm);
    const Execution& run = policies.run;
    for (const Execution::Batch& batch : run.batches)
        *sequence++ = batch.type;
    for (i64 v = 0; v < graph.n; v++)
        stages[v] = run.stage(v);
    found[0] = static_cast<i64>(run.batches.size());
    found[1] = run.n_stages;
    found[2] = static_cast<i64>(run.steps().size());
    found[3] = policies.unseen;
    return 1;
}

// Learns a machine; vpps_learned takes it. `found`: how many trials, steps, stages, batches at least, and numbers.
EXPORT void* vpps_learn(const GivenGraph* given, const Settings* settings, const Costs* costs, i64* found)
{
    TypedGraph graph = typed(*given);
    auto learned = std::make_unique<Learned>(Learner(graph, *settings, *costs).learn());
    found[0] = learned->trials;
    found[1] = learned->n_steps;
    found[2] = learned->n_stages;
    found[3] = learned->bound;
    found[4] = learned->machine.numbers(nullptr);
    return learned.release();
}

EXPORT void vpps_learned(void* learned, i64* numbers)
{
    const std::unique_ptr<Learned> taken(static_cast<Learned*>(learned));
    taken->machine.numbers(numbers);
}
