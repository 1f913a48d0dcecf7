// What a batching policy is. ARCHITECTURE.md says how to add one.
#pragma once

#include <memory>
#include <string_view>
#include "automaton.h"

// Scratch memory of the graphs before stays.
class Policy {
public:
    Execution run;   // of the latest graph
    i64 unseen = 0;  // batches of it that began in a state that the automaton does not know

    virtual ~Policy() = default;

    // Batches a typed graph: all of it, or a recurrence of several cells (PolicyRow); level by level, unless a policy
    // knows better. The automaton is what was learned for such graphs by a policy that learns.
    virtual void batch(TypedGraph& graph, const Automaton&) { run.by_level(graph); }

    // Whether it leaves it at that, so that nobody need make a typed graph.
    virtual bool by_level() const { return false; }
};

// A line of the table (vpps/planner/native/policy_table.py).
struct PolicyRow {
    const char* name;
    bool whole;    // it batches whole graphs; otherwise recurrences of several cells, all else level by level
    bool learned;  // it needs automata
    std::unique_ptr<Policy> (*make)();
};

template <class P> std::unique_ptr<Policy> make_policy() { return std::make_unique<P>(); }
