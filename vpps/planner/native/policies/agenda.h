// Policy `agenda`, from DyNet: chooses the ready type whose vertices have the lowest mean level.
//
// Neubig, Goldberg and Dyer, "On-the-fly Operation Batching in Dynamic Computation Graphs", NIPS 2017, section 3. The
// mean is over the vertices that have not run, as ED-Batch describes it in section 2.1.
#pragma once

#include "policies/policy.h"

class Agenda : public Policy {
public:
    void batch(TypedGraph& graph, const Automaton&) override
    {
        run.start(graph);
        sums_.assign(graph.n_types, 0);
        remaining_.assign(graph.n_types, 0);
        for (i64 v = 0; v < graph.n; v++) {
            sums_[graph.type[v]] += graph.level[v];
            remaining_[graph.type[v]]++;
        }
        while (!run.done()) {
            const i32 type = run.best_ready([&](i64 a, i64 b) {
                return sums_[a] * remaining_[b] < sums_[b] * remaining_[a];  // no overflow: n^3 fits for n = 2 million
            });
            remaining_[type] -= run.ready(type);
            for (i64 i = 0; i < run.ready(type); i++)
                sums_[type] -= graph.level[run.ready_of(type)[i]];
            run.execute(graph, type);
        }
    }

private:
    std::vector<i64> sums_, remaining_;  // by type: sum of the remaining vertices' levels, and their number
};
