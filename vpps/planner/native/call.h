// Reads the blocks of a call (vpps/planner/native/interface.py) without copying its arrays.
#pragma once

#include <memory>
#include "graph.h"

// Makes the columns of adjacent arguments.
inline void columns(std::vector<Column>& into, i64 at, i64 step, i64 n)
{
    into.clear();
    for (i64 k = 0; k < n; k++)
        into.push_back({pointer<const i64>(at) + k, step, 0});
}

inline void take_blocks(const Call& call, const std::vector<std::unique_ptr<RecordedCell>>& cells, Graph& graph)
{
    const auto* next = pointer<const BlockInput>(call.blocks);
    graph.n_calls = call.n_calls;
    graph.n_values = call.n_values;
    graph.resize(call.n_blocks);
    for (RecordedBlock& b : graph) {
        const BlockInput& given = *next;
        b.cell = cells[given.cell].get();
        b.constants = pointer<const u32>(given.constants);
        b.n = given.n;
        b.calls = {pointer<const i64>(given.calls), given.calls_step, 0};
        b.levels = {pointer<const i64>(given.levels), given.levels_step, 0};
        b.values.clear();
        for (i64 o = 0; o < b.cell->n_outputs; o++)
            b.values.push_back({pointer<const i64>(given.first), given.first_step, o});
        columns(b.args, given.args, given.args_step, b.cell->n_args);
        columns(b.ints, given.ints, given.ints_step, b.cell->n_ints);
        b.data = pointer<const u32>(given.data);
        b.lists.resize(b.cell->n_lists);
        const auto* lists = reinterpret_cast<const ListInput*>(next + 1);
        for (size_t i = 0; i < b.lists.size(); i++) {
            const ListInput& xs = lists[i];
            const i64* lengths = pointer<const i64>(xs.lengths);
            const i64* ends = xs.ends ? pointer<const i64>(xs.ends) : b.ends_of(i, lengths);
            b.lists[i] = {ends, pointer<const i64>(xs.elements)};
        }
        next = reinterpret_cast<const BlockInput*>(lists + b.lists.size());
    }
}
