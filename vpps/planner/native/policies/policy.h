// Base class of batching policies. ARCHITECTURE.md says how to add one.
#pragma once

#include <memory>
#include <string_view>
#include "automaton.h"

// Policies keep their memory between graphs.
class Policy {
public:
    Execution run;   // execution of the latest graph
    i64 unseen = 0;  // number of batches that began in a state unknown to the automaton

    virtual ~Policy() = default;

    // Batches a typed graph, which is a whole graph or a recurrence of several cells (PolicyRow). By default, level by
    // level. The automaton is for policies that learn.
    virtual void batch(TypedGraph& graph, const Automaton&) { run.by_level(graph); }

    // True if the policy batches level by level, so that no typed graph is needed.
    virtual bool by_level() const { return false; }
};

// A row of the table (vpps/planner/native/policy_table.py).
struct PolicyRow {
    const char* name;
    bool whole;    // batches whole graphs; if false, only recurrences of several cells
    bool learned;  // needs automata
    std::unique_ptr<Policy> (*make)();
};

template <class P> std::unique_ptr<Policy> make_policy() { return std::make_unique<P>(); }
