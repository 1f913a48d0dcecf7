// Where the slabs of one block lie, and from when to when.
#pragma once

#include "block.h"

// An array of the pool: a slab, or what one step has of it; the first and the last period in which it is there, and the
// group of virtual processors whose periods these are.
struct Array {
    static constexpr i64 ALL = -1;
    i64 start, stop, first, last, group;
};

struct MemoryOfBlock {
    struct Lifetime {
        i64 first = 0, last = -1;
    };

    std::vector<i64> at, room;    // by group and step; room: rows that each slab has room for
    std::vector<Lifetime> lives;  // likewise, where somebody asks (memory_map.h); of a whole slab, by the first step
    std::vector<std::pair<i32, std::vector<i64>>> passed_on;  // group, last reader of each step's rows

    // Whether a slab is one array for all rows of the block.
    static bool whole(Life life) { return life == Life::KEPT || life == Life::ACROSS || life == Life::LATE; }

    // Rows of a group of slabs in a step; of a whole one, in all steps.
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
