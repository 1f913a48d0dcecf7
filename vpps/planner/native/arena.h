// First-fit allocator that frees memory period by period (memory.h).
#pragma once

#include "interface.h"

#include <algorithm>

inline i64 aligned(i64 address) { return (address + ALIGN - 1) / ALIGN * ALIGN; }

// Sorts in ascending order. libc++ provides sorting by std::less only in a library that zig does not link (ziglang.py).
template <class Number> void sort_numbers(std::vector<Number>& numbers)
{
    std::sort(numbers.begin(), numbers.end(), [](Number a, Number b) { return a < b; });
}

// Allocates memory above a start address, first fit.
class Arena {
public:
    i64 stop = 0;

    void reset(i64 start)
    {
        stop = aligned(start);
        holes_.clear();
        dying_.clear();
    }

    // Frees the allocations that end before a period.
    void begin(i64 period)
    {
        while (!dying_.empty() && dying_.front().last < period) {
            std::pop_heap(dying_.begin(), dying_.end(), later);
            i64 start = dying_.back().start, end = dying_.back().stop;
            dying_.pop_back();
            auto at = std::lower_bound(holes_.begin(), holes_.end(), start,
                                       [](const Hole& hole, i64 address) { return hole.start < address; });
            if (at != holes_.end() && at->start == end) {
                at->start = start;
                if (at != holes_.begin() && (at - 1)->stop == start) {
                    (at - 1)->stop = at->stop;
                    holes_.erase(at);
                }
            } else if (at != holes_.begin() && (at - 1)->stop == start) {
                (at - 1)->stop = end;
            } else {
                holes_.insert(at, {start, end});
            }
        }
    }

    // Allocates whole cache lines until the end of period `last`.
    i64 take(i64 floats, i64 last)
    {
        if (!floats)
            return stop;
        floats = aligned(floats);
        i64 start = -1;
        for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
            if (hole->stop - hole->start < floats)
                continue;
            start = hole->start;
            hole->start += floats;
            if (hole->start == hole->stop)
                holes_.erase(hole);
            break;
        }
        if (start < 0) {
            start = stop;
            if (!holes_.empty() && holes_.back().stop == stop) {
                start = holes_.back().start;
                holes_.pop_back();
            }
            stop = start + floats;
        }
        dying_.push_back({last, start, start + floats});
        std::push_heap(dying_.begin(), dying_.end(), later);
        return start;
    }

private:
    struct Hole {
        i64 start, stop;
    };
    struct Allocation {
        i64 last, start, stop;
    };
    static bool later(const Allocation& a, const Allocation& b) { return a.last > b.last; }
    std::vector<Hole> holes_;        // sorted; no two are adjacent
    std::vector<Allocation> dying_;  // a heap; the first to end is in front
};
