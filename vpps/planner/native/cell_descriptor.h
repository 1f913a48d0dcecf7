// Static descriptions of a model's cells: records (vpps/compiler/records.py) that are read once.
#pragma once

#include <cstring>
#include <map>
#include "interface.h"

inline i64 size(const Template& of) { return static_cast<i64>(of.words.size()); }

// Writes the relocated words of a template. base(i) is the i-th base; first and count are indexed by domain.
template <class Base> void fill(const Template& from, u32* out, Base base, const i64* first, const i64* count)
{
    std::memcpy(out, from.words.data(), from.words.size() * sizeof(u32));
    for (const Relocation& h : from.relocations) {
        i64 value = h.per_row * first[h.domain] + h.per_count * count[h.domain];
        if (h.base >= 0)
            value += base(h.base);
        out[h.word] += static_cast<u32>(value);
    }
}

inline i64 floats(const SlabGroup& of, i64 rows) { return rows ? rows * of.width + of.stagger : 0; }

using Groups = std::vector<std::vector<Group>>;  // by barrier

// A cell as recorded, and its parts by key (RowsOfBlocks::make_key). A cell that is not split has one part.
struct RecordedCell : CellInput {
    std::map<std::vector<u8>, Parts> by_key;
    mutable std::vector<u8> crossed;  // for growing graphs; see Graph::keep_crossed

    const Parts* parts(const std::vector<u8>& key) const
    {
        const auto found = by_key.find(key);
        return found == by_key.end() ? nullptr : &found->second;
    }
};
