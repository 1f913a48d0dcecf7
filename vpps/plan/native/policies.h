// Batches of a typed graph by each of the policies (vpps/plan/policies): which type runs next.
#pragma once

#include "machine.h"

// The first type that no other is better than, of those that have a ready vertex.
template <class Better> inline i32 best_ready(const TypedGraph& graph, const Execution& run, Better&& better)
{
    i32 found = -1;
    for (i32 t = 0; t < graph.n_types; t++)
        if (run.ready(t) && (found < 0 || better(t, found)))
            found = t;
    return found;
}

// The type of which the largest part is ready that could be first at all; of equal ones that with the most ready.
inline i32 nearest(const TypedGraph& graph, const Execution& run, const Subgraphs& subgraphs)
{
    return best_ready(graph, run, [&](i64 a, i64 b) {
        const i64 mine = run.ready(a) * subgraphs[b], other = run.ready(b) * subgraphs[a];
        return mine > other || (mine == other && run.ready(a) > run.ready(b));
    });
}

// Scratch memory of the graphs before stays.
class Policies {
public:
    Execution run;
    i64 unseen = 0;  // steps in which a machine did not know its state

    // By AGENDA, SUFFICIENT, CRITICAL or FSM; the machine is that of the latter.
    void batch(TypedGraph& graph, PolicyCode policy, const Machine& machine)
    {
        unseen = 0;
        if (policy == PolicyCode::AGENDA)
            agenda(graph);
        else if (policy == PolicyCode::SUFFICIENT)
            sufficient(graph);
        else if (policy == PolicyCode::CRITICAL)
            critical(graph);
        else
            fsm(graph, machine);
    }

    // The type whose remaining vertices have the least mean level.
    void agenda(TypedGraph& graph)
    {
        run.start(graph);
        sums_.assign(graph.n_types, 0);
        remaining_.assign(graph.n_types, 0);
        for (i64 v = 0; v < graph.n; v++) {
            sums_[graph.type[v]] += graph.level[v];
            remaining_[graph.type[v]]++;
        }
        while (!run.done()) {
            const i32 type = best_ready(graph, run, [&](i64 a, i64 b) {
                return sums_[a] * remaining_[b] < sums_[b] * remaining_[a];  // fits: n^3 does for 2 million vertices
            });
            remaining_[type] -= run.ready(type);
            for (i64 i = 0; i < run.ready(type); i++)
                sums_[type] -= graph.level[run.ready_of(type)[i]];
            run.execute(graph, type);
        }
    }

    // The type of which the largest part is ready that could be first at all.
    void sufficient(TypedGraph& graph)
    {
        run.start(graph);
        subgraphs_.start(graph, run);
        while (!run.done())
            subgraphs_.execute(graph, run, nearest(graph, run, subgraphs_));
    }

    // The type of the ready vertex at which the longest path begins; see Execution.
    void critical(TypedGraph& graph)
    {
        run.start(graph, true);
        while (!run.done())
            run.execute(graph, best_ready(graph, run, [&](i64 a, i64 b) { return run.is_more_critical(a, b); }));
    }

    // As a machine says; where it does not know the state, the first type of one that ranks them, else the type that
    // `sufficient` would choose.
    void fsm(TypedGraph& graph, const Machine& machine)
    {
        const bool ranks = machine.encoding.ranks();
        bool counts = false;
        run.start(graph, ranks);
        unseen = 0;
        while (!run.done()) {
            machine.encoding.encode(graph, run, state_);
            const i64 state = machine.states.find(state_);
            unseen += state < 0;
            if (state < 0 && !ranks && !counts) {
                subgraphs_.start(graph, run);
                counts = true;
            }
            const i32 type = state >= 0 ? machine.next[state] : ranks ? state_[1] : nearest(graph, run, subgraphs_);
            if (counts)
                subgraphs_.execute(graph, run, type);
            else
                run.execute(graph, type);
        }
    }

private:
    Subgraphs subgraphs_;
    std::vector<i64> sums_, remaining_;  // levels and number of what remains, by type
    std::vector<i32> state_;
};
