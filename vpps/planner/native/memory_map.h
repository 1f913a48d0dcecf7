// Finds the memory map and rows of the latest plan, on request (vpps/planner/native/memory_map.py).
#pragma once

#include "memory.h"

class MemoryMap {
public:
    // The result is valid until the next call or the next plan.
    void find(const RowsOfBlocks& rows, const SlabAllocator& memory, MemoryResult& found)
    {
        columns_.clear();
        blocks_.clear();
        for (const Block& b : rows)
            blocks_.push_back(block(b));
        arrays_ = memory.arrays(rows);
        found = {rows.n_blocks, address(blocks_.data()), static_cast<i64>(arrays_.size()), address(arrays_.data()),
                 memory.stop(), memory.end()};
    }

private:
    std::vector<BlockResult> blocks_;
    std::vector<Array> arrays_;
    std::vector<std::vector<i64>> columns_;

    // Stores n numbers and returns their address.
    template <class Of> i64 column(i64 n, Of&& of)
    {
        columns_.emplace_back();
        for (i64 i = 0; i < n; i++)
            columns_.back().push_back(of(i));
        return address(columns_.back().data());
    }

    BlockResult block(const Block& b)
    {
        BlockResult found{};
        found.cell = b.cell->id;
        found.late = b.late;
        found.pause = b.pause;
        found.n_needed = b.n_needed;
        found.n_needed_steps = b.n_needed_steps;
        found.n_vertices = b.n;
        found.calls = column(b.n, [&](i64 vertex) { return b.calls[vertex]; });
        found.n_outputs = static_cast<i64>(b.values.size());
        found.values = column(b.n * found.n_outputs, [&](i64 i) { return b.values[i / b.n][i % b.n]; });
        found.n_rows = b.n_rows;
        found.order = column(b.n_rows, [&](i64 row) { return b.vertex(row); });
        found.n_steps = b.n_steps;
        found.n_domains = b.domains();
        found.stage = address(b.stage.data());
        found.group = column(b.n_steps, [&](i64 step) { return b.group_of(step); });
        found.first = address(b.first_row.data());
        found.count = address(b.count.data());
        found.n_bases = b.n_bases();
        found.operands = b.operand_base(0);
        found.bases = address(b.bases.data());
        found.n_lists = static_cast<i64>(b.list_at.size());
        found.lists = address(b.list_at.data());
        return found;
    }
};
