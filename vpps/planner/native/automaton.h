// Finite-state machines that choose the next batch (ED-Batch, 2.2). Encodings: vpps/model/learned_policy.py.
#pragma once

#include "execution.h"

// Encodes a frontier as a state: the phase, then the types.
struct Encoding {
    EncodingKind kind = EncodingKind::CRITICAL;
    i64 phases = 1;

    bool ranks() const { return kind == EncodingKind::CRITICAL; }

    void encode(const TypedGraph& graph, const Execution& run, std::vector<i32>& state) const
    {
        state.assign(1, static_cast<i32>(run.executed * phases / graph.n));
        i32 most = -1;
        for (i32 t = 0; t < graph.n_types; t++) {
            if (!run.ready(t))
                continue;
            if (most < 0 || run.ready(t) > run.ready(most))
                most = t;
            size_t at = state.size();
            state.push_back(t);
            for (; at > 1 && precedes(run, t, state[at - 1]); at--)
                state[at] = state[at - 1];
            state[at] = t;
        }
        if (kind == EncodingKind::MAX && state.size() > 2)
            state.push_back(most);
    }

private:
    // True if `type` comes before `other`, which has a smaller number.
    bool precedes(const Execution& run, i32 type, i32 other) const
    {
        if (kind == EncodingKind::CRITICAL)
            return run.is_more_critical(type, other);
        return kind == EncodingKind::SORT && run.ready(type) > run.ready(other);
    }
};

// The encoding, and the next type for each known state.
struct Automaton {
    Encoding encoding;
    std::map<std::vector<i32>, i32> next;

    // Reads the format of Python's `Automaton.numbers`.
    explicit Automaton(Numbers& from)
    {
        encoding.kind = taken<EncodingKind>(from);
        encoding.phases = from.take();
        for (i64 n = from.take(); n-- > 0 && !from.overrun();) {
            const auto state = taken<std::vector<i32>>(from);
            next[state] = taken<i32>(from);
        }
    }
    Automaton() = default;

    // Writes the format of Python's `Automaton.numbers`.
    std::vector<i64> numbers() const
    {
        std::vector<i64> found{static_cast<i64>(encoding.kind), encoding.phases, static_cast<i64>(next.size())};
        for (const auto& [state, type] : next) {
            found.push_back(static_cast<i64>(state.size()));
            found.insert(found.end(), state.begin(), state.end());
            found.push_back(type);
        }
        return found;
    }
};
