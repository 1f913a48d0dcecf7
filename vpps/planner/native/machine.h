// Finite-state machines that choose the next batch (ED-Batch, 2.2); vpps/planner/native/automaton.py describes the encodings.
#pragma once

#include "execution.h"

// Sequences of numbers, each with a number of its own from 0.
class States {
public:
    i64 size() const { return static_cast<i64>(ends_.size()) - 1; }
    i64 length(i64 state) const { return ends_[state + 1] - ends_[state]; }
    const i32* numbers(i64 state) const { return &numbers_[ends_[state]]; }

    // The number of a sequence, or -1.
    i64 find(const std::vector<i32>& sequence) const { return slots_.empty() ? -1 : slots_[slot_of(sequence)]; }

    i64 add(const std::vector<i32>& sequence)
    {
        if (2 * (size() + 1) > static_cast<i64>(slots_.size()))
            grow();
        i32& slot = slots_[slot_of(sequence)];
        if (slot < 0) {
            slot = static_cast<i32>(size());
            numbers_.insert(numbers_.end(), sequence.begin(), sequence.end());
            ends_.push_back(static_cast<i32>(numbers_.size()));
        }
        return slot;
    }

private:
    std::vector<i32> numbers_, ends_ = {0};
    std::vector<i32> slots_;  // open addressing; a power of two of them, half of them free, -1

    size_t slot_of(const std::vector<i32>& sequence) const
    {
        u64 hash = sequence.size();
        for (const i32 number : sequence)
            hash = (hash ^ static_cast<u32>(number)) * 0x9E3779B97F4A7C15u;
        const size_t mask = slots_.size() - 1;
        for (size_t at = hash >> 32 & mask;; at = (at + 1) & mask) {
            const i32 state = slots_[at];
            if (state < 0 || (length(state) == static_cast<i64>(sequence.size()) &&
                              std::equal(sequence.begin(), sequence.end(), numbers(state))))
                return at;
        }
    }

    void grow()
    {
        slots_.assign(std::max<size_t>(64, 2 * slots_.size()), -1);
        for (i64 state = 0; state < size(); state++)
            slots_[slot_of({numbers(state), numbers(state) + length(state)})] = static_cast<i32>(state);
    }
};

// What of a frontier is a state: the phase, then types.
struct Encoding {
    EncodingKind kind = EncodingKind::SORT;
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
    // Whether a type comes before another one of smaller number.
    bool precedes(const Execution& run, i32 type, i32 other) const
    {
        if (kind == EncodingKind::CRITICAL)
            return run.is_more_critical(type, other);
        return kind == EncodingKind::SORT && run.ready(type) > run.ready(other);
    }
};

// The encoding, and which type is next in each known state.
struct Machine {
    Encoding encoding;
    States states;
    std::vector<i32> next;

    // From what `Machine.numbers` of Python gives.
    explicit Machine(Numbers& from)
    {
        encoding.kind = static_cast<EncodingKind>(from.take());
        encoding.phases = from.take();
        std::vector<i32> state;
        for (i64 n = from.take(); n-- > 0;) {
            state.clear();
            from.take(state, from.take());
            add(state, static_cast<i32>(from.take()));
        }
    }
    Machine() = default;

    void add(const std::vector<i32>& state, i32 type)
    {
        const auto number = static_cast<size_t>(states.add(state));
        next.resize(std::max(next.size(), number + 1));
        next[number] = type;
    }

    // Writes the same, unless there is no memory for it; returns how many numbers that are.
    i64 numbers(i64* out) const
    {
        i64 n = 0;
        auto add = [&](i64 number) {
            if (out)
                out[n] = number;
            n++;
        };
        add(static_cast<i64>(encoding.kind));
        add(encoding.phases);
        add(states.size());
        for (i64 state = 0; state < states.size(); state++) {
            add(states.length(state));
            std::for_each(states.numbers(state), states.numbers(state) + states.length(state), add);
            add(next[state]);
        }
        return n;
    }
};
