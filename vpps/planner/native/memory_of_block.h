// Addresses and lifetimes of one block's slabs.
#pragma once

#include "block.h"

// An array in the pool: a slab, or a slab's slice for one step. It lives from period `first` to period `last` of a
// group of virtual processors.
struct Array {
    static constexpr i64 ALL = -1;
    i64 start, stop, first, last, group;
};

struct BlockMemory {
    struct Lifetime {
        i64 first = 0, last = -1;
    };

    std::vector<i64> at, room;    // by slab group and step: address, and room in rows
    std::vector<Lifetime> lives;  // by slab group and step, if requested (memory_map.h); whole slabs: at the first step
    std::vector<std::pair<i32, std::vector<i64>>> passed_on;  // slab group, and the last reader of each step's rows

    // True if a slab is one array for all rows of the block.
    static bool whole(Life life) { return life == Life::KEPT || life == Life::ACROSS || life == Life::LATE; }

    // Number of a slab group's rows in a step, or in all steps if its slabs are whole.
    static i64 rows_of(const Block& b, const SlabGroup& group, i64 step)
    {
        return whole(group.life) ? b.rows(group.domain) : b.count[step * b.domains() + group.domain];
    }

    void arrays(const Block& b, std::vector<Array>& found) const
    {
        for (size_t i = 0; i < b.cell->memory.places.size(); i++) {
            const SlabPlace& place = b.cell->memory.places[i];
            const SlabGroup& group = b.cell->memory.groups[place.group];
            for (i64 step = 0; step < b.n_steps; step++) {
                const i64 of = place.group * b.n_steps + step, rows = rows_of(b, group, step);
                const auto [first, last] = lives[of];
                if (!rows || first > last)
                    continue;
                const i64 start = at[of] + room[of] * place.before + place.stagger;
                const i64 stop = start + rows * b.cell->slabs[i].width;
                found.push_back({start, stop, first, last, whole(group.life) ? Array::ALL : b.group_of(step)});
            }
        }
    }
};
