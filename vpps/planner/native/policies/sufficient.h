// Policy `sufficient`: the type of which the largest part is ready that could be first at all.
//
// Where all vertices of a type that wait for no other of that type are ready, a shortest sequence of batches begins with
// that type (ED-Batch, Lemma 2.1). Where no type fulfils that, the one that comes nearest to it is next. Chains and trees
// are batched with as few batches as possible.
#pragma once

#include "policies/policy.h"

// That type; of equal ones that with the most ready.
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
