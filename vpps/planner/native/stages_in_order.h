// The steps of all blocks, sorted by group of virtual processors and by execution order of stages.
#pragma once

#include "rows.h"

inline const Groups& groups_of(const Block& b, bool backward) { return backward ? b.cell->backward : b.cell->forward; }

class StagesInOrder {
public:
    struct StageStep {
        i64 group, stage, block, step;
    };

    // Finds the steps in one direction. `late`: only the loss chain's steps alongside backward; if false, all others.
    void find(const RowsOfBlocks& rows, bool backward, bool late)
    {
        rows_ = &rows;
        backward_ = backward;
        members_.clear();
        for (i64 k = 0; k < rows.n_blocks; k++) {
            const Block& b = rows.blocks[k];
            if (!groups_of(b, backward).empty() && b.late == late)
                for (i64 s = 0; s < (backward ? b.n_needed_steps : b.n_steps); s++)
                    members_.push_back({b.group_of(s), b.stage[s], k, s});
        }
        std::stable_sort(members_.begin(), members_.end(), [&](const StageStep& a, const StageStep& b) {
            if (a.group != b.group)
                return a.group < b.group;
            return backward ? a.stage > b.stage : a.stage < b.stage;
        });
    }

    size_t size() const { return members_.size(); }
    const StageStep& operator[](size_t i) const { return members_[i]; }
    const StageStep* at(size_t i) const { return members_.data() + i; }
    const Block& block(size_t i) const { return rows_->blocks[members_[i].block]; }
    const Groups& groups(size_t i) const { return groups_of(block(i), backward_); }

    size_t end_of_stage(size_t begin) const
    {
        size_t end = begin;
        while (end < members_.size() && members_[end].stage == members_[begin].stage &&
               members_[end].group == members_[begin].group)
            end++;
        return end;
    }

    // Returns the part of the direction that contains a step. Barriers of all groups separate parts (GroupedSchedule).
    i64 part(size_t i) const
    {
        return (members_[i].stage >= rows_->first_own) + (members_[i].stage >= rows_->first_joining);
    }

    // True if two steps belong to the same group and part.
    bool goes_on(size_t i, size_t other) const
    {
        return members_[i].group == members_[other].group && part(i) == part(other);
    }

    // Returns the number of barrier-separated levels of instruction groups in the stage at [begin, end).
    size_t groups_of_stage(size_t begin, size_t end) const
    {
        size_t found = 0;
        for (size_t i = begin; i < end; i++)
            found = std::max(found, groups(i).size());
        return found;
    }

    // True if a step fills the pause at the end of its stage.
    bool fills(size_t i) const
    {
        return !backward_ && block(i).pause > 0 && members_[i].stage % STAGES == RowsOfBlocks::LEVEL;
    }

private:
    const RowsOfBlocks* rows_ = nullptr;
    bool backward_ = false;
    std::vector<StageStep> members_;
};
