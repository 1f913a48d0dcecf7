// Policy `sufficient`: chooses the type with the largest ready share of its frontier.
//
// The frontier of a type is the set of vertices that wait for no other vertex of the type. If the whole frontier is
// ready, some shortest sequence of batches begins with that type (ED-Batch, Lemma 2.1). If there is no such type, the
// policy chooses the one that comes closest. Chains and trees get as few batches as possible.
#pragma once

#include "policies/policy.h"

// Returns the type with the largest ready share; among equals, the type with the most ready vertices.
inline i32 nearest(const Execution& run, const Subgraphs& subgraphs)
{
    return run.best_ready([&](i64 a, i64 b) {
        const i64 mine = run.ready(a) * subgraphs[b], other = run.ready(b) * subgraphs[a];
        return mine > other || (mine == other && run.ready(a) > run.ready(b));
    });
}

class Sufficient : public Policy {
public:
    void batch(TypedGraph& graph, const Automaton&) override
    {
        run.start(graph);
        subgraphs_.start(graph, run);
        while (!run.done())
            subgraphs_.execute(graph, run, nearest(run, subgraphs_));
    }

private:
    Subgraphs subgraphs_;
};
