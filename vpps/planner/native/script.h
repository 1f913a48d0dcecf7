// Writes the words of a script, including its lists, into the caller's buffer.
#pragma once

#include "account.h"
#include "draws.h"
#include "memory.h"

// If the buffer is too small, further words are only counted; the caller plans again with a larger buffer.
class Script {
public:
    i64 size = 0;

    void reset(u32* memory, i64 capacity)
    {
        memory_ = memory;
        capacity_ = capacity;
        size = 0;
    }
    bool complete() const { return size <= capacity_; }
    u32* at(i64 position) { return memory_ + position; }

    // Adds room for n words.
    u32* add(i64 n)
    {
        size += n;
        if (size <= capacity_)
            return memory_ + size - n;
        nowhere_.resize(std::max<size_t>(nowhere_.size(), n));
        return nowhere_.data();
    }
    void add(const std::vector<u32>& words) { std::copy(words.begin(), words.end(), add(static_cast<i64>(words.size()))); }

private:
    u32* memory_ = nullptr;
    i64 capacity_ = 0;
    std::vector<u32> nowhere_;
};

class Lists {
public:
    u32* addresses = nullptr;  // address of each value
    Draws draws;

    // Returns the number of entries in a list.
    static i64 length(const Block& b, const Source& s)
    {
        switch (s.kind) {
        case From::ENDS: return b.n_rows + 1;
        case From::DATA: return b.n_rows * s.b;
        default: return b.rows(s.domain);
        }
    }

    // Writes the first n entries of a list, except lists that need more than the block: OFFSETS, USES, RANDOM_KEY.
    void values(const Block& b, i32 source, u32* out, i64 n)
    {
        const Source& s = b.cell->sources[source];
        switch (s.kind) {
        case From::ARGS:
            for (i64 r = 0; r < n; r++)
                out[r] = addresses[b.args[s.a][b.vertex(r)]];
            break;
        case From::ELEMENTS:
            values_read(b, s, n, [&](i64 i, i64 value) { out[i] = addresses[value]; });
            break;
        case From::ROWS:
            rows_of_slab(b, static_cast<i32>(s.a), 0, out, n);
            break;
        case From::SAME_ROW: {
            const SameRow& value = b.cell->same_row[s.a];
            rows_of_slab(b.parts[value.part], value.slab, value.offset, out, n);
            break;
        }
        case From::TABLE_ROWS:
            values(b, s.of, out, n);
            for (i64 r = 0; r < n; r++)
                out[r] = static_cast<u32>(s.a + static_cast<i32>(out[r]) * s.b);
            break;
        case From::INTS:
            for (i64 r = 0; r < n; r++)
                out[r] = static_cast<u32>(b.ints[s.a][b.vertex(r)]);
            break;
        case From::CONSTANT:
            std::fill_n(out, n, static_cast<u32>(s.a));
            break;
        case From::EXPAND: {
            std::vector<u32>& of_vertex = expanded_;
            of_vertex.resize(std::max<size_t>(of_vertex.size(), b.n_rows));
            values(b, s.of, of_vertex.data(), b.n_rows);
            const i32* owner = b.owner[s.domain - 1].data();
            for (i64 i = 0; i < n; i++)
                out[i] = of_vertex[owner[i]];
            break;
        }
        case From::ENDS:
            for (i64 r = 0; r < n; r++)
                out[r] = static_cast<u32>(b.ends[s.a - 1][r]);
            break;
        case From::DATA:
            for (i64 r = 0; r * s.b < n; r++)
                std::copy_n(b.data + b.vertex(r) * s.b, s.b, out + r * s.b);
            break;
        case From::CALLS:
            for (i64 r = 0; r < n; r++)
                out[r] = draws.of(b.calls[b.vertex(r)]);
            break;
        case From::POSITIONS: {
            const i32* owner = b.owner[s.domain - 1].data();
            const i64* ends = b.ends[s.domain - 1].data();
            for (i64 i = 0; i < n; i++)
                out[i] = static_cast<u32>(i - ends[owner[i]]);
            break;
        }
        case From::OFFSETS:
        case From::USES:
        case From::RANDOM_KEY:
            break;
        }
    }

    // Writes the addresses of the first n rows.
    void addresses_of(const Block& b, const Rows& rows, u32* out, i64 n)
    {
        const auto offset = static_cast<u32>(rows.offset);
        if (rows.source < 0) {
            std::fill_n(out, n, offset);
            return;
        }
        values(b, rows.source, out, n);
        if (offset)
            for (i64 r = 0; r < n; r++)
                out[r] += offset;
    }

    // Sets the addresses of a block's values. The bases must be known.
    void address(const Block& b)
    {
        found_.resize(std::max<size_t>(found_.size(), b.n_rows));
        for (size_t o = 0; o < b.cell->outputs.size(); o++) {
            addresses_of(b, b.cell->outputs[o], found_.data(), b.n_rows);
            for (i64 r = 0; r < b.n_rows; r++)
                addresses[b.values[o][b.vertex(r)]] = found_[r];
        }
    }

private:
    std::vector<u32> expanded_, found_;

    static void rows_of_slab(const Block& b, i32 slab, i64 offset, u32* out, i64 n)
    {
        const i64 n_bases = b.n_bases(), domains = b.domains(), width = b.cell->slabs[slab].width;
        const i32 domain = b.cell->slabs[slab].domain;
        for (i64 step = 0; step < b.n_steps; step++) {
            const i64 begin = b.first_row[step * domains + domain], base = b.bases[step * n_bases + slab] + offset;
            const i64 stop = std::min(n, begin + b.count[step * domains + domain]);
            for (i64 r = begin; r < stop; r++)
                out[r] = static_cast<u32>(base + r * width);
        }
    }
};
