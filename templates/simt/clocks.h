// ---- vector clocks for the happens-before relation, at three granularities (block, warp, thread).
//
// Time is one number for the whole launch, incremented at every event that orders threads (a barrier, a shuffle, a
// release). Every access carries its thread and time. "A knows block 3 up to 17" means that all accesses by threads of
// block 3 at times <= 17 happened before A's next access. Blocks become known through their __syncthreads. A signal adds
// parts: later accesses by its thread, and by threads that it met in a __syncwarp.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace simt {

typedef uint32_t Time;

enum : uint32_t {
    MAX_BLOCKS = 256,
    THREAD_BITS = 10,  // number of a thread in the launch: block << THREAD_BITS | thread
    MAX_THREADS = 1u << THREAD_BITS,
    LANES = 32,
};
inline uint32_t block_of(uint32_t thread) { return (thread >> THREAD_BITS) % MAX_BLOCKS; }

// Strength of an ordering. RELAXED ones would order threads if the signal or wait were not relaxed; they explain races.
enum class Order : uint8_t { ESTABLISHED, RELAXED_SIGNAL, RELAXED_WAIT };

struct Part {  // accesses by threads first ... last in one block, up to a time
    uint32_t first, last;
    Time time;
    Order order;

    bool covers(uint32_t from, uint32_t to, Time when) const { return first <= from && to <= last && when <= time; }
};

struct Knowledge {
    Time blocks[MAX_BLOCKS];
    std::vector<Part> parts;

    void forget(Time start)
    {
        std::fill(blocks, blocks + MAX_BLOCKS, start);
        parts.clear();
    }

    void learn(const Part& part)
    {
        if (part.time <= blocks[block_of(part.first)]) return;
        for (Part& p : parts)
            if (p.first == part.first && p.last == part.last && p.order == part.order) {
                p.time = std::max(p.time, part.time);
                return;
            }
        parts.push_back(part);
    }

    // Adds all that `other` knows, with orderings at most as strong as `order`.
    void merge(const Knowledge& other, uint32_t count, Order order)
    {
        for (uint32_t b = 0; b < count; b++) {
            if (order == Order::ESTABLISHED) blocks[b] = std::max(blocks[b], other.blocks[b]);
            else learn({b << THREAD_BITS, ((b + 1) << THREAD_BITS) - 1, other.blocks[b], order});
        }
        for (Part p : other.parts) {
            if (p.order == Order::ESTABLISHED) p.order = order;
            learn(p);
        }
        prune();
    }

    void prune()
    {
        parts.erase(std::remove_if(parts.begin(), parts.end(),
                                   [&](const Part& p) { return p.time <= blocks[block_of(p.first)]; }),
                    parts.end());
    }

    bool has_part(uint32_t from, uint32_t to, Time when, Order order) const
    {
        for (const Part& p : parts)
            if (p.order == order && p.covers(from, to, when)) return true;
        return false;
    }
};

}  // namespace simt
