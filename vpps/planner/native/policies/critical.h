// Policy `critical`: chooses the type of the ready vertex that starts the longest path.
//
// Batching many examples together is like finding a shortest common supersequence of strings: the longest strings
// determine the result, and the others fit in alongside. So the policy schedules by critical path (Hu, "Parallel
// sequencing and assembly line problems", 1961), not by the number of ready vertices.
//
// Among types with equally long paths it chooses one whose batch is sure to shorten the longest chain of its type. The
// lower bound on batches (ED-Batch, A.3) is the sum of these longest chains over all types, also for the remaining graph. A
// batch lowers the bound by one if all vertices that start a longest chain of its type are ready, else not at all. (Lemma
// 2.1, the basis of `sufficient`, requires more: all vertices that wait for no other vertex of their type must be ready,
// including starts of short chains. In lattices, that is rare.) The last criterion is the number of ready vertices.
//
// The policy needs no learning and takes O(edges * types). On lattices, it comes within 15 % of the lower bound and has
// fewer stages; the sufficient condition ends up 33 % above.
#pragma once

#include "policies/policy.h"

struct Critical : Policy {
    void batch(TypedGraph& graph, const Automaton&) override
    {
        run.start(graph, true);
        while (!run.done())
            run.execute(graph, run.best_ready([&](i64 a, i64 b) { return run.is_more_critical(a, b); }));
    }
};
