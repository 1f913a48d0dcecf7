// Row addressing of operands: base and stride if the rows have a constant stride, otherwise an index list.
//
// Base and stride are words of the operand and cost the kernel nothing. The list contains only the rows of steps
// without a constant stride. An instruction on all rows of a cell at once (a matrix gradient) needs the whole list;
// then steps without a constant stride point into that list.
#pragma once

#include "launch.h"

class RowLists {
public:
    explicit RowLists(LaunchPlan& launch) : launch_(launch) {}

    void place(Block& b, bool training)
    {
        const Cell& cell = *b.cell;
        const auto n_operands = training ? static_cast<i64>(cell.operands.size()) : cell.n_forward_operands;
        for (i32 list = 0; list < static_cast<i32>(cell.row_lists.size()); list++) {
            bool whole = false, by_step = false;
            for (i64 o = 0; o < n_operands; o++)
                if (cell.operands[o].list == list)
                    (cell.operands[o].whole ? whole : by_step) = true;
            if (!whole && !by_step)
                continue;
            const i32 source = cell.row_lists[list], domain = cell.sources[source].domain;
            const i64 n = b.rows(domain), domains = b.domains();
            found_.resize(std::max<size_t>(found_.size(), n));
            launch_.lists.values(b, source, found_.data(), n);
            i64 at = UNEVEN;  // position of the whole list
            if (whole) {
                const Run all = run(found_.data(), n);
                if (all.stride == UNEVEN)
                    at = launch_.place_words(found_.data(), n);
                for (i64 step = 0; step < b.n_steps; step++)
                    set_operands(b, list, true, n_operands, step, all, at);
            }
            bool goes_on = false;  // steps without a constant stride share a list
            for (i64 step = 0; step < b.n_steps && by_step; step++) {
                const i64 first = b.first_row[step * domains + domain], count = b.count[step * domains + domain];
                const Run rows = run(found_.data() + first, count);
                i64 position = at + first;
                if (rows.stride == UNEVEN && at == UNEVEN) {
                    position = launch_.place_words(found_.data() + first, count, goes_on);
                    goes_on = true;
                }
                set_operands(b, list, false, n_operands, step, rows, position);
            }
        }
    }

private:
    // Addresses of rows: the address of the first row, and the stride, or UNEVEN.
    static constexpr i64 UNEVEN = -1;
    struct Run {
        i64 address, stride;
    };

    LaunchPlan& launch_;
    std::vector<u32> found_;

    Run run(const u32* addresses, i64 n) const
    {
        if (n < 2)
            return {n ? addresses[0] : 0, 0};
        const u32 stride = addresses[1] - addresses[0];
        bool even = addresses[1] >= addresses[0] && stride <= launch_.model.offset_mask;
        for (i64 i = 2; i < n && even; i++)
            even = addresses[i] - addresses[i - 1] == stride;
        return {addresses[0], even ? stride : UNEVEN};
    }

    void set_operands(Block& b, i32 list, bool whole, i64 n_operands, i64 step, const Run& rows, i64 position) const
    {
        const bool listed = rows.stride == UNEVEN;
        for (i64 o = 0; o < n_operands; o++) {
            const RowOperand& operand = b.cell->operands[o];
            if (operand.list != list || operand.whole != whole)
                continue;
            i64* words = &b.bases[step * b.n_bases() + b.operand_base(o)];
            words[0] = listed ? position : rows.address + operand.offset;
            words[1] = listed ? launch_.model.indexed | operand.offset : rows.stride;
        }
    }
};
