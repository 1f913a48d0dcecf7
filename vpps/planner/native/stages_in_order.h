// The steps of all blocks, by group of virtual processors, in the order in which their stages run.
#pragma once

#include "rows.h"

inline const Groups& groups_of(const Block& b, bool backward) { return backward ? b.cell->backward : b.cell->forward; }

class StagesInOrder {
public:
    struct StageStep {
        i64 group, stage, block, step;
    };

    // Of one direction; `late`: those of the chain of the loss that run beside backward, else all others.
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

    // Which part of the direction a step is of: groups meet between them (GroupedSchedule).
    i64 part(size_t i) const
    {
        return (members_[i].stage >= rows_->first_own) + (members_[i].stage >= rows_->first_joining);
    }

    // Whether a step is of the same group and part as another one.
    bool goes_on(size_t i, size_t other) const
    {
        return members_[i].group == members_[other].group && part(i) == part(other);
    }

    // How many groups run one after the other in the stage from `begin` to `end`.
    size_t groups_of_stage(size_t begin, size_t end) const
    {
        size_t found = 0;
        for (size_t i = begin; i < end; i++)
            found = std::max(found, groups(i).size());
        return found;
    }

    // Whether a step fills the pause at the end of its stage.
    bool fills(size_t i) const
    {
        return !backward_ && block(i).pause > 0 && members_[i].stage % STAGES == RowsOfBlocks::LEVEL;
    }

private:
    const RowsOfBlocks* rows_ = nullptr;
    bool backward_ = false;
    std::vector<StageStep> members_;
};
