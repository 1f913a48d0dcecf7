// Finds the recurrences among the blocks of a graph (vpps/record/topology.py).
#pragma once

#include <algorithm>
#include <utility>
#include "numbers.h"

// Lists of numbers in one array.
class Ragged {
public:
    struct Span {
        const i32 *first, *last;
        const i32* begin() const { return first; }
        const i32* end() const { return last; }
        size_t size() const { return static_cast<size_t>(last - first); }
        i32 operator[](size_t i) const { return first[i]; }
    };

    void clear()
    {
        numbers_.clear();
        ends_.assign(1, 0);
    }

    void add(i32 number) { numbers_.push_back(number); }
    void end_list() { ends_.push_back(numbers_.size()); }

    // Start of the numbers added since the last end_list().
    std::vector<i32>::iterator unfinished() { return numbers_.begin() + static_cast<std::ptrdiff_t>(ends_.back()); }
    std::vector<i32>::iterator end() { return numbers_.end(); }

    Span operator[](i64 list) const { return {numbers_.data() + ends_[list], numbers_.data() + ends_[list + 1]}; }

private:
    std::vector<i32> numbers_;
    std::vector<size_t> ends_;
};

// Strongly connected components of the "reads from" relation, in topological order: sources first.
class Components {
public:
    // `sources`: for each block, the blocks that it reads, in ascending order.
    void find(const Ragged& sources, i64 n_blocks)
    {
        n_ = 0;
        of_block_.assign(n_blocks, -1);
        index_.assign(n_blocks, -1);
        low_.assign(n_blocks, 0);
        rank_.clear();
        recurrent_.clear();
        stack_.clear();
        visited_ = 0;
        for (i64 root = 0; root < n_blocks; root++)
            if (index_[root] < 0)
                search(sources, static_cast<i32>(root));
        list_members(n_blocks);
    }

    i64 size() const { return n_; }
    i64 of_block(i64 block) const { return of_block_[block]; }
    bool is_recurrent(i64 component) const { return recurrent_[component]; }

    // Topological rank: a component reads only components of smaller rank.
    i64 rank(i64 component) const { return rank_[component]; }

    // The blocks of a component, in ascending order.
    Ragged::Span members(i64 component) const
    {
        return {sorted_.data() + ends_[component], sorted_.data() + ends_[component + 1]};
    }

private:
    i64 n_ = 0;
    i32 visited_ = 0;
    std::vector<i32> of_block_, index_, low_, stack_, sorted_;
    std::vector<i64> rank_, ends_;
    std::vector<u8> recurrent_;
    std::vector<std::pair<i32, size_t>> path_;  // from the root: a block, and the number of its sources seen so far

    void visit(i32 block)
    {
        index_[block] = low_[block] = visited_++;
        stack_.push_back(block);
        path_.push_back({block, 0});
    }

    // Tarjan's algorithm (1972) without recursion. Blocks on the stack have been visited and have no component yet.
    void search(const Ragged& sources, i32 root)
    {
        visit(root);
        while (!path_.empty()) {
            const i32 block = path_.back().first;
            const Ragged::Span read = sources[block];
            if (size_t& seen = path_.back().second; seen < read.size()) {
                const i32 source = read[seen++];
                if (index_[source] < 0)
                    visit(source);
                else if (of_block_[source] < 0)
                    low_[block] = std::min(low_[block], index_[source]);
                continue;
            }
            path_.pop_back();
            if (!path_.empty())
                low_[path_.back().first] = std::min(low_[path_.back().first], low_[block]);
            if (low_[block] == index_[block])
                close(sources, block);
        }
    }

    // Turns the blocks on the stack, from `first` on, into a component.
    void close(const Ragged& sources, i32 first)
    {
        const auto begin = std::find(stack_.rbegin(), stack_.rend(), first).base() - 1;
        const auto component = static_cast<i32>(n_++);
        std::for_each(begin, stack_.end(), [&](i32 block) { of_block_[block] = component; });
        i64 rank = 0;
        u8 recurrent = 0;
        std::for_each(begin, stack_.end(), [&](i32 block) {
            for (const i32 source : sources[block])
                if (of_block_[source] == component)
                    recurrent = 1;
                else
                    rank = std::max(rank, rank_[of_block_[source]] + 1);
        });
        rank_.push_back(rank);
        recurrent_.push_back(recurrent);
        stack_.erase(begin, stack_.end());
    }

    void list_members(i64 n_blocks)
    {
        ends_.assign(n_ + 2, 0);
        for (const i32 component : of_block_)
            ends_[component + 2]++;
        for (i64 c = 0; c < n_; c++)
            ends_[c + 2] += ends_[c + 1];
        sorted_.resize(n_blocks);
        for (i64 k = 0; k < n_blocks; k++)
            sorted_[ends_[of_block_[k] + 1]++] = static_cast<i32>(k);
    }
};
