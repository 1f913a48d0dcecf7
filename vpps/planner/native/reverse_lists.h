// Writes reverse lists (the gradient rows that sum to a value's gradient), and the constants that backward begins with.
#pragma once

#include "launch.h"

class ReverseLists {
public:
    explicit ReverseLists(LaunchPlan& launch) : launch_(launch) {}

    // Writes, for every value, the addresses of its readers' gradient rows, in the order of blocks, arguments and rows.
    void place(const LossChain& chain)
    {
        constants_.clear();
        if (!launch_.call->seeded)
            find_constants(chain);
        const RowsOfBlocks& graph = launch_.rows;
        ordinal_.resize(std::max<size_t>(ordinal_.size(), graph.n_values));
        first_.clear();
        u32 total = 0;
        for (const Block& b : graph) {
            first_.push_back(total);
            for (const Column ids : b.values)
                for (i64 r = 0; r < b.n_rows; r++)
                    ordinal_[ids[b.vertex(r)]] = total++;
        }
        // Target value and address of each gradient row; first the rows that backward begins with.
        targets_.clear();
        rows_.clear();
        if (launch_.call->seeded) {
            place_seeds();
        } else {
            for (size_t i = 0; i < chain.values.size(); i++) {
                targets_.push_back(ordinal_[chain.values[i]]);
                rows_.push_back(address_of_constant(chain.words[i]));
            }
        }
        for (const Block& b : graph) {
            if (!b.n_needed)
                continue;
            for (const Argument& argument : b.cell->arguments) {
                const Source& read = b.cell->sources[argument.values];
                const i64 n = b.needed_rows(read.domain);
                const size_t before = rows_.size();
                targets_.resize(before + n);
                rows_.resize(before + n);
                launch_.lists.addresses_of(b, argument.gradient, rows_.data() + before, n);
                const u32* ordinal = ordinal_.data();
                u32* targets = targets_.data() + before;
                values_read(b, read, n, [=](i64 row, i64 value) { targets[row] = ordinal[value]; });
            }
        }
        starts_.assign(total + 1, 0);
        u32* starts = starts_.data() + 1;
        for (const u32 target : targets_)
            starts[target]++;
        for (u32 i = 1; i < total; i++)
            starts[i] += starts[i - 1];
        starts = starts_.data();
        u32 *entries, *offsets;
        const auto n = static_cast<i64>(rows_.size());
        const i64 at = launch_.place(n, entries);
        at_ = launch_.place(total + 1, offsets);
        for (u32 i = 0; i <= total; i++)
            offsets[i] = static_cast<u32>(at) + starts[i];
        if (launch_.script.size > launch_.call->capacity)
            return;  // the buffer is too small; the caller plans again with a larger one
        for (i64 i = 0; i < n; i++)
            entries[starts[targets_[i]]++] = rows_[i];
    }

    // Position of the offsets for a block's output.
    i64 of(i64 block, i64 output) const { return at_ + first_[block] + output * launch_.rows.blocks[block].n_rows; }

    void place_constants()
    {
        if (!constants_.empty())
            numbers_ = launch_.place_words(constants_.data(), static_cast<i64>(constants_.size()));
    }

    // Writes the instruction for the constants, long before anything reads them.
    void write_constants()
    {
        if (constants_.empty())
            return;
        launch_.frame[Frame::ROWS] = static_cast<i64>(constants_.size());
        launch_.frame[Frame::GRADIENT] = constants_at_;
        launch_.frame[Frame::NUMBERS] = numbers_;
        launch_.write_once(Origin::CONSTANTS, launch_.model.constants);
    }

private:
    static constexpr u32 WORD_OF_ONE = 0x3f800000;

    LaunchPlan& launch_;
    i64 at_ = 0;  // position of the offsets
    i64 constants_at_ = 0, numbers_ = 0;  // the constants' address in the pool, and position in the script
    std::vector<u32> constants_;  // gradients other than 1 that backward begins with
    std::vector<u32> ordinal_, targets_, starts_, rows_;
    std::vector<i64> first_;  // by block: ordinal of its first value

    // Allocates the seeds, which the caller writes after forward.
    void place_seeds()
    {
        Call& call = *launch_.call;
        const i64 *values = pointer<const i64>(call.wanted), *seeds = pointer<const i64>(call.seeds);
        call.seeds_at = launch_.take(call.n_seed_floats);
        for (i64 i = 0; i < call.n_wanted; i++) {
            targets_.push_back(ordinal_[values[i]]);
            rows_.push_back(static_cast<u32>(call.seeds_at + seeds[i]));
        }
    }

    void find_constants(const LossChain& chain)
    {
        for (const u32 word : chain.words)  // nearly always equal
            if (word != WORD_OF_ONE && (constants_.empty() || word != constants_.back()))
                constants_.push_back(word);
        sort_numbers(constants_);
        constants_.erase(std::unique(constants_.begin(), constants_.end()), constants_.end());
        constants_at_ = launch_.take(static_cast<i64>(constants_.size()));
    }

    u32 address_of_constant(u32 word) const
    {
        if (word == WORD_OF_ONE)
            return ONE;
        const auto at = std::lower_bound(constants_.begin(), constants_.end(), word) - constants_.begin();
        return static_cast<u32>(constants_at_ + at);
    }
};
