// Policy `fsm`, from ED-Batch: an automaton learned for the recurrence chooses the type of the next batch.
//
// In an unknown state, it follows `critical` if the encoding ranks types, else `sufficient`.
#pragma once

#include "policies/sufficient.h"

class Fsm : public Policy {
public:
    void batch(TypedGraph& graph, const Automaton& automaton) override
    {
        const bool ranks = automaton.encoding.ranks();
        bool counts = false;
        run.start(graph, ranks);
        unseen = 0;
        while (!run.done()) {
            automaton.encoding.encode(graph, run, state_);
            const auto next = automaton.next.find(state_);
            const bool known = next != automaton.next.end();
            unseen += !known;
            if (!known && !ranks && !counts) {
                subgraphs_.start(graph, run);  // computed lazily: few graphs need it
                counts = true;
            }
            const i32 type = known ? next->second : ranks ? state_[1] : nearest(run, subgraphs_);
            if (counts)
                subgraphs_.execute(graph, run, type);
            else
                run.execute(graph, type);
        }
    }

private:
    Subgraphs subgraphs_;
    std::vector<i32> state_;
};
