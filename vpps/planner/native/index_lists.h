// Writes the index lists of blocks, and the data of their cells.
#pragma once

#include "reverse_lists.h"
#include "row_lists.h"

class IndexLists {
public:
    IndexLists(LaunchPlan& launch, const ReverseLists& reverse) : launch_(launch), reverse_(reverse), row_lists_(launch) {}

    void place(bool training)
    {
        key_at_ = -1;
        for (i64 k = 0; k < launch_.rows.n_blocks; k++) {
            Block& b = launch_.rows.blocks[k];
            const i64 n_keys = training ? static_cast<i64>(b.cell->keys.size()) : b.cell->n_forward_keys;
            b.list_at.assign(b.cell->keys.size(), 0);
            for (i64 i = 0; i < n_keys; i++)
                if (b.cell->sources[b.cell->keys[i]].kind != From::SAME_ROW)
                    b.list_at[i] = place_list(k, b.cell->keys[i], training);
            row_lists_.place(b, training);
        }
    }

private:
    LaunchPlan& launch_;
    const ReverseLists& reverse_;
    RowLists row_lists_;
    i64 key_at_ = -1;  // position of the random key, which all cells share

    i64 place_list(i64 block, i32 source, bool training)
    {
        const Block& b = launch_.rows.blocks[block];
        const Source& s = b.cell->sources[source];
        u32* words;
        if (s.kind == From::USES)
            return training ? reverse_.of(block, s.a) : 0;
        if (s.kind == From::RANDOM_KEY) {
            if (key_at_ < 0) {
                key_at_ = launch_.place(3, words);
                words[0] = static_cast<u32>(launch_.call->key_low);
                words[1] = static_cast<u32>(launch_.call->key_high);
                words[2] = static_cast<u32>(launch_.call->key_on);
            }
            return key_at_;
        }
        if (s.kind == From::OFFSETS) {
            const i64 entries = place_list(block, s.of, training);
            const i64 at = launch_.place(b.n_rows + 1, words);
            for (i64 r = 0; r <= b.n_rows; r++)
                words[r] = static_cast<u32>(entries + b.ends[s.a - 1][r]);
            return at;
        }
        const i64 n = Lists::length(b, s), at = launch_.place(n, words);
        launch_.lists.values(b, source, words, n);
        return at;
    }
};
