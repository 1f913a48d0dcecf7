// Policy `critical`: the type of the ready vertex at which the longest path begins is next.
//
// Batching many examples side by side is like putting strings into a shortest common supersequence: the longest ones
// decide, and the others find their place beside them. So what delays the end is served first, as where work is
// scheduled by critical paths (Hu, "Parallel sequencing and assembly line problems", 1961), not what most vertices of
// are ready.
//
// Of types with equally long paths that is next whose batch certainly shortens the longest chain of its type. The lower
// bound of batches (ED-Batch, A.3) is the sum over types of such chains, and so is that of what remains: a batch takes
// one off it where all vertices that begin a longest chain of its type are ready, and nothing where one of them is not.
// (Lemma 2.1, on which `sufficient` rests, asks that all are ready that wait for no other of their type, those that begin
// short chains included; in lattices that is rare.) Then the number of ready vertices decides.
//
// Nothing is learned, and it takes O(edges * types). On lattices it comes within 15 % of the lower bound, where the
// sufficient condition stays 33 % above, and with fewer stages.
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
