// Planned blocks: the vertices of a cell as rows in execution order (vpps/planner/blocks.py).
#pragma once

#include "graph.h"

// The vertices of a cell, or of a part of a cell, with their rows. Vectors keep their memory between plans.
struct Block : Vertices {
    const Cell* cell = nullptr;
    const Block* parts = nullptr;  // the first part of this cell
    i64 base = 0, factor = 1;      // the stage of a vertex is base + factor * its local stage,
    std::vector<i64> stage_of;     // or this, by local stage, if the block streams
    bool late = false;             // in the loss chain, running alongside backward
    i64 pause = 0;                 // number of stages after which all virtual processors have run one of its steps

    bool identity = true;          // order[r] == r
    std::vector<i32> order;        // vertex in each row
    i64 n_rows = 0, n_needed = 0;
    i64 n_steps = 0, n_needed_steps = 0;
    std::vector<i64> stage, first_row, count;  // by step; the last two by step and domain
    std::vector<i32> group;                    // by step: group of virtual processors, if there are several
    std::vector<std::vector<i64>> ends;        // by domain - 1: row of each vertex's first element
    std::vector<std::vector<i32>> owner;       // by domain - 1: vertex row of each element

    std::vector<i64> bases;    // by step: bases of slabs, then of other parts' slabs, then operands' words
    std::vector<i64> list_at;  // by key

    i64 stage_at(i64 local) const { return stage_of.empty() ? base + factor * local : stage_of[local]; }
    i32 group_of(i64 step) const { return group.empty() ? 0 : group[step]; }
    i64 vertex(i64 row) const { return identity ? row : order[row]; }
    i64 domains() const { return 1 + cell->n_domains; }
    i64 rows(i32 domain) const { return domain ? static_cast<i64>(owner[domain - 1].size()) : n_rows; }
    i64 needed_rows(i32 domain) const { return domain ? ends[domain - 1][n_needed] : n_needed; }
    i64 n_slabs() const { return static_cast<i64>(cell->slabs.size()); }
    i64 operand_base(i64 operand) const { return n_slabs() + static_cast<i64>(cell->same_row.size()) + 2 * operand; }
    i64 n_bases() const { return operand_base(static_cast<i64>(cell->operands.size())); }
};

// Calls act(row, value) for the values that the first n rows pass as an argument, in row order.
template <class Do> inline void values_read(const Block& b, const Source& s, i64 n, Do&& act)
{
    if (s.kind == From::ELEMENTS) {
        const List& xs = b.lists[s.a];
        i64 i = 0;
        for (i64 r = 0; i < n; r++) {
            const i64 v = b.vertex(r);
            for (i64 e = xs.ends[v]; e < xs.ends[v + 1]; e++)
                act(i++, xs.elements[e]);
        }
        return;
    }
    const Column& ids = b.args[s.kind == From::SAME_ROW ? s.b : s.a];
    for (i64 r = 0; r < n; r++)
        act(r, ids[b.vertex(r)]);
}
