// What `plan` is called with, and what it finds: numbers and addresses of arrays (vpps/plan/native/planner.py).
#pragma once

#include <memory>
#include "graph.h"

// What `plan` is called with, and what it finds; as in planner.py, class _Call. Addresses of arrays are numbers, too.
struct Call {
    i64 training, policy, at_once, by_readers, splits, dead_outputs, chunk_rows, n_blocks, blocks, n_values, wanted, n_wanted, loss_slot, key_on, key_low, key_high;
    i64 updates, keeps, clips, max_norm, averages, n_hyper, hyper, hyper_of;
    i64 held, n_held_rows, held_rows;                 // held_rows: (parameter, number of rows, address) of each table
    i64 script, capacity, addresses, room_for_values, touched, tables, cells; // memory for results; tables: (OfTable) of each; cells: id of each, ~id where late
    i64 words, pool_floats, n_barriers, encoding, names, n_tables, n_all_values, new_block, key, n_key, n_cells;
    i64 after, before, group, backward, unseen;
    i64 products, n_products, entries;  // products: memory for (OfProduct) of each; entries: of the second launch
};
// Of each block; then, for each list, the address of its ends, or 0 and that of its lengths, and of its elements. Columns are where they begin and how far
// apart their numbers are; those of arguments lie side by side.
enum OfBlock : i64 {
    CELL, N, CALLS, FIRST = CALLS + 2, LEVELS = FIRST + 2, ARGS = LEVELS + 2, INTS = ARGS + 2, DATA = INTS + 2, BLOCK
};
enum OfTable : i64 { PARAMETER, ROWS, GRADIENT, OFFSETS, NUMBERS, IDLE, TABLE };
enum OfProduct : i64 { MATRIX, VECTORS, DY_AT, DY_STRIDE, X_AT, X_STRIDE, PRODUCT };
// NEW_BLOCK: `new_block` has a cell whose parts, by `key`, have not been told yet. NEW_PAIR: nor what of
// the cell `after` may begin while others still execute `group` of the cell `before`: `backward` says after what. NEW_RECURRENCE: nor how that of
// `new_block` is to run.
// Of a pair: a step of the same direction, the first of backward, the gradients of the parameters.
enum Following : i64 { FORWARD, BACKWARD, TURN };
enum Status : i64 { DONE, MORE_MEMORY, NO_GRADIENT, NOT_MINE, NEW_BLOCK, NEW_PAIR, NEW_RECURRENCE };

inline void columns(std::vector<Column>& into, const i64* given, i64 n)
{
    into.clear();
    for (i64 k = 0; k < n; k++)
        into.push_back({pointer<const i64>(given[0]) + k, given[1], 0});
}

// The blocks of a call, over its arrays.
inline void take_blocks(const Call& call, const std::vector<std::unique_ptr<WholeCell>>& cells, Graph& graph)
{
    const i64* next = pointer<const i64>(call.blocks);
    graph.n_blocks = call.n_blocks;
    graph.n_values = call.n_values;
    if (static_cast<i64>(graph.blocks.size()) < graph.n_blocks)
        graph.blocks.resize(graph.n_blocks);
    for (i64 k = 0; k < graph.n_blocks; k++) {
        Whole& b = graph.blocks[k];
        b.cell = cells[next[CELL]].get();
        b.n = next[N];
        b.calls = {pointer<const i64>(next[CALLS]), next[CALLS + 1], 0};
        b.levels = {pointer<const i64>(next[LEVELS]), next[LEVELS + 1], 0};
        b.values.clear();
        for (i64 o = 0; o < b.cell->n_outputs; o++)
            b.values.push_back({pointer<const i64>(next[FIRST]), next[FIRST + 1], o});
        columns(b.args, next + ARGS, b.cell->n_args);
        columns(b.ints, next + INTS, b.cell->n_ints);
        b.data = pointer<const u32>(next[DATA]);
        b.lists.resize(b.cell->n_lists);
        next += BLOCK;
        for (size_t i = 0; i < b.lists.size(); i++, next += 3)
            b.lists[i] = {next[0] ? pointer<const i64>(next[0]) : b.ends_of(i, pointer<const i64>(next[1])),
                          pointer<const i64>(next[2])};
    }
}
