#pragma once
#include "prelude.h"
// ---- the script: heads, operands, slices. Mirrors vpps/script/instructions.py and vpps/script/slices.py.
enum {
    COUNTER_WORDS = 32,  // words of a counter's line
    COUNTERS = VP_COUNTERS,
    STOPPED = 1u << 30,       // stopping a launch adds this to all counters, which ends all waits
    UNKNOWN_INSTRUCTION = 1,  // reason for stopping
};
VP_DEVICE int opcode_of(const Word* ip) { return ip[0] & 0xffff; }
VP_DEVICE int size_of(const Word* ip) { return ip[1]; }
VP_DEVICE Word entry_point(const Vp& vp) { return vp.script[VP_HEADER_WORDS + vp.id]; }

struct Head {
    int opcode, flags, n, width, parts;
};

// Rows of floats, at a stride or given by an index list.
struct Operand {
    float* pool;
    const Word* script;
    Word address;  // address of the first row, or of an index list in the script
    Word step;     // stride between rows, or offset within an indexed row
    bool indexed;
    bool scalar;   // one float per row, used for every unit
    VP_DEVICE float* row(int r) const
    {
        return pool + (VP_OPAQUE(indexed) ? script[address + r] + step : address + (Word)r * step);
    }
};

struct Segments {
    const Word* first;
    int count;
};

// Decodes the fields of an instruction in order.
struct Reader {
    const Vp& vp;
    const Word* ip;
    const Word* end;
    VP_DEVICE Reader(const Vp& v, const Word* i) : vp(v), ip(i), end(i + i[1]) {}
    VP_DEVICE Head head()
    {
        Head h = {opcode_of(ip), (int)(ip[0] >> 16), (int)ip[2], (int)ip[3], (int)ip[4]};
        ip += VP_HEAD_WORDS;
        return h;
    }
    VP_DEVICE Word word() { return *ip++; }
    VP_DEVICE float floating() { return as_float(*ip++); }
    VP_DEVICE const Word* list() { return vp.script + *ip++; }
    VP_DEVICE Operand operand()
    {
        const Word address = ip[0], mode = ip[1];
        ip += 2;
        return {vp.pool, vp.script, address, mode & VP_OFFSET_MASK, (mode & VP_INDEXED) != 0, (mode & VP_SCALAR) != 0};
    }
    VP_DEVICE Segments segments() { return {ip, (int)(end - ip) / 3}; }
    VP_DEVICE Segments views() { return segments(); }
};

VP_DEVICE Operand segment(const Vp& vp, const Segments& s, int k, int* width)
{
    Reader in(vp, s.first);  // its `end` is not used
    in.ip = s.first + 3 * k;
    const Operand x = in.operand();
    *width = (int)in.word();
    return x;
}

// Start of share number `vp`, if range(total) is divided into `count` contiguous, nearly equal shares.
VP_DEVICE int share(unsigned total, unsigned vp, unsigned count) { return (int)(total / count * vp + total % count * vp / count); }

// This virtual processor's part of an instruction's result: rows by units of each part.
VP_DEVICE Slices slices_of(const Vp& vp, const Word* ip)
{
    const int flags = (int)(ip[0] >> 16), n = (int)ip[2], width = (int)ip[3], parts = (int)ip[4];
    if (width == 0) return {};  // a barrier; divisions would delay those that wait at it
    if (flags & ALONE) return {0, n, 0, width, width, 1};
    if (flags & TURNS) return {0, n, 0, 0, 0, 0};  // its routine slices the result (cuda/held.cuh, Owned)
    if (flags & ROWS) return {share(n, vp.id, vp.count), share(n, vp.id + 1, vp.count), 0, width, width, 1};
    int part = width;
    if (parts > 1) part = width >> 21 ? width / parts : small_quotient(width, parts);  // small_quotient needs < 2^21
    const int blocks = (part + VP_PANEL - 1) / VP_PANEL;
    const int from = share(blocks, vp.id, vp.count) * VP_PANEL, to = share(blocks, vp.id + 1, vp.count) * VP_PANEL;
    return {0, n, from, least(to, part), part, parts};
}

// Calls f(row_from, row_to, unit_from, unit_to) for every piece of the result that this virtual processor owns. It calls f
// in a single place, because f is inlined, and a second copy would double the compile time.
template <class F> VP_DEVICE void for_slices(const Vp& vp, const Head& h, F f)
{
    const Slices& s = vp.slices;
    if (s.from >= s.to || (h.flags & (ROWS | ALONE) && s.row_from >= s.row_to)) return;
    VP_ROLLED for (int p = 0; p < s.parts; p++) f(s.row_from, s.row_to, p * s.part + s.from, p * s.part + s.to);
}

// This virtual processor's tiles [first, last) of a (rows, columns) matrix, with `across` tiles in a panel of rows.
struct OwnTiles {
    int across, first, last;
    VP_DEVICE OwnTiles(const Vp& vp, int rows, int columns) : across((columns + VP_TILE_COLUMNS - 1) / VP_TILE_COLUMNS)
    {
        const int panels = (rows + VP_PANEL - 1) / VP_PANEL;
        first = share(panels * across, vp.id, vp.count), last = share(panels * across, vp.id + 1, vp.count);
    }
    VP_DEVICE int last_panel() const { return (last - 1) / across; }
};

// Calls f(panel, column_from, column_to, tile) for the tiles that this virtual processor owns.
template <class F> VP_DEVICE void for_tiles(const Vp& vp, int rows, int columns, F f)
{
    const OwnTiles own(vp, rows, columns);
    int panel = own.first / own.across, tile = own.first - panel * own.across;
    VP_ROLLED for (int t = own.first; t < own.last; t++) {
        const int from = tile * VP_TILE_COLUMNS;
        f(panel, from, least(from + VP_TILE_COLUMNS, columns), tile);
        if (++tile == own.across) tile = 0, panel++;
    }
}
