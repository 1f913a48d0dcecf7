// Numbers each vertex for its random words (vpps/ops/philox.py).
#pragma once

#include <array>
#include <limits>
#include <map>
#include "interface.h"

class Draws {
public:
    void begin(const Call& call)
    {
        const auto* given = pointer<const ExamplesInput>(call.examples);
        const auto* end = given + call.n_examples;
        i64 n_calls = 0;
        for (const auto* g = given; g != end; g++)
            n_calls = std::max(n_calls, g->first + g->n);
        example_.assign(n_calls, call.outside);
        for (; given != end; given++) {
            if (given->numbers)
                std::copy_n(pointer<const i64>(given->numbers), given->n, example_.begin() + given->first);
            else
                std::fill_n(example_.begin() + given->first, given->n,
                            given->number == -1 ? call.outside : given->number == UNNUMBERED ? NO_EXAMPLE : given->number);
        }
        others_.clear();
        for (size_t k = 0; n_calls && k < usual_.size(); k++)
            usual_[k] = first_of(static_cast<i64>(k));
        numbers_.resize(n_calls);
        for (i64 k = 0; k < n_calls;) {
            const i64 example = example_[k];  // often the same as for its neighbours
            if (example == NO_EXAMPLE) {  // a constant draws nothing
                k++;
                continue;
            }
            u32& next = next_of(example);
            for (; k < n_calls && example_[k] == example; k++)
                numbers_[k] = next++;
        }
        behind_ = next_of(call.outside) - static_cast<u32>(n_calls);
    }

    u32 of(i64 call) const
    {
        return call < static_cast<i64>(numbers_.size()) ? numbers_[call] : behind_ + static_cast<u32>(call);
    }

private:
    static constexpr i64 NO_EXAMPLE = std::numeric_limits<i64>::min();
    std::vector<i64> example_;
    std::vector<u32> numbers_;
    // For each example, the number of its next vertex. Large example numbers are rare, so they are kept in a map.
    std::array<u32, 1024> usual_;
    std::map<i64, u32> others_;
    u32 behind_ = 0;  // vertices after all known examples: the vertex's number minus its recording index

    static u32 first_of(i64 example) { return static_cast<u32>(example + 1) * static_cast<u32>(EXAMPLE_STEP); }

    u32& next_of(i64 example)
    {
        if (example >= 0 && example < static_cast<i64>(usual_.size()))
            return usual_[example];
        return others_.try_emplace(example, first_of(example)).first->second;
    }
};
