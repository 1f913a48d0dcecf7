// Schedule "paper": one instruction for each vertex and op. The least loaded virtual processor executes it; products
// are executed by all virtual processors that hold rows of the matrix.
#pragma once

#include <numeric>
#include "launch.h"
#include "stages_in_order.h"

class PaperSchedule {
public:
    explicit PaperSchedule(LaunchPlan& launch) : launch_(launch) {}

    void begin()
    {
        least_.resize(launch_.model.n_vps);
        std::iota(least_.begin(), least_.end(), 0);
    }

    // Writes the forward steps, or the backward steps with the last stage first. A barrier follows every level of ops.
    void steps(bool backward)
    {
        stages_.find(launch_.rows, backward, false);
        for (size_t begin = 0, end; begin < stages_.size(); begin = end) {
            end = stages_.end_of_stage(begin);
            launch_.begin_stage(backward, stages_[begin].stage);
            const size_t n_levels = stages_.groups_of_stage(begin, end);
            for (size_t k = 0; k < n_levels; k++) {
                for (size_t i = begin; i < end; i++)
                    for (size_t g = 0; k < stages_.groups(i).size() && g < stages_.groups(i)[k].size(); g++) {
                        launch_.note(backward ? Origin::BACKWARD : Origin::FORWARD, stages_.block(i), k, g);
                        vertices(stages_.block(i), stages_[i].step, stages_.groups(i)[k][g]);
                    }
                launch_.streams.barrier();
            }
        }
    }

    // Writes the instruction that reports the loss. A barrier separates it from the loss chain.
    void report() { launch_.write_once(Origin::LOSS, launch_.model.loss); }

    void end_backward() {}  // a barrier follows each stage

    void meet(Reason reason)
    {
        launch_.set_reason(reason);
        launch_.streams.barrier();
    }

private:
    static constexpr i64 PRODUCT_LOAD = 4;  // weight of a product's load: each float of its vector multiplies many rows
    static constexpr int SHIFT = 16;        // left shift of a load: the low bits hold the number of a virtual processor

    LaunchPlan& launch_;
    StagesInOrder stages_;
    std::vector<i64> least_;  // a min-heap of virtual processors: load (up to a constant), and number in the low bits
    std::vector<i64> first_, one_;
    std::vector<u32> words_;
    std::vector<i64> rows_;  // rows of vertices, for the account
    i64 runs_ = 0;           // number of groups executed row by row, for the account

    // Writes one instruction for each row of a step.
    void vertices(const Block& b, i64 step, const Group& group)
    {
        const i64 at = step * b.domains() + group.domain, n = b.count[at];
        if (!n)
            return;
        first_.assign(b.domains(), 0);
        one_.assign(b.domains(), 1);
        first_[group.domain] = b.first_row[at];
        words_.resize(size(group.words));
        LaunchPlan::fill(b, group.words, step, first_.data(), one_.data(), words_.data());
        runs_++;
        const i32* owner = group.domain ? b.owner[group.domain - 1].data() : nullptr;
        const auto note = [&](i64 begin, i64 end) { note_rows(owner, first_[group.domain] + begin, first_[group.domain] + end); };
        if (group.owners.empty())
            deal(group, n, note);
        else
            give_to_owners(group, n, note);
    }

    void note_rows(const i32* owner, i64 begin, i64 end)
    {
        if (!launch_.account)
            return;
        rows_.clear();
        for (i64 row = begin; row < end; row++)
            rows_.push_back(owner ? owner[row] : row);
        launch_.account->give_rows(runs_, rows_);
    }

    // Gives each row to the least loaded virtual processor; the first one if several are equal.
    template <class Note> void deal(const Group& group, i64 n, Note&& note)
    {
        for (i64 row = 0; row < n; row++) {
            note(row, row + 1);
            next_row(group, launch_.streams.add(virtual_processor(least_[0]), size(group.words)));
            least_[0] += group.load << SHIFT;
            sift_down(least_);
        }
    }

    static size_t virtual_processor(i64 of) { return of & ((1 << SHIFT) - 1); }

    template <class Note> void give_to_owners(const Group& group, i64 n, Note&& note)
    {
        note(0, n);
        const i64 length = size(group.words);
        const u32* made = nullptr;  // the words of the first owner
        for (const i32 vp : group.owners) {
            u32* words = launch_.streams.add(vp, n * length);
            if (made) {
                std::copy_n(made, n * length, words);
                continue;
            }
            made = words;
            for (i64 row = 0; row < n; row++)
                next_row(group, words + row * length);
        }
        if (group.owners.size() == least_.size())
            return;  // all loads grow by the same amount
        for (i64& of : least_)
            if (std::binary_search(group.owners.begin(), group.owners.end(), static_cast<i32>(virtual_processor(of))))
                of += n * group.load * PRODUCT_LOAD << SHIFT;
        std::make_heap(least_.begin(), least_.end(), [](i64 a, i64 b) { return a > b; });
    }

    // Copies the words for a row, then changes them to those for the next row.
    void next_row(const Group& group, u32* out)
    {
        std::copy(words_.begin(), words_.end(), out);
        for (const Relocation& relocation : group.words.relocations)
            words_[relocation.word] += static_cast<u32>(relocation.per_row);
    }
};
