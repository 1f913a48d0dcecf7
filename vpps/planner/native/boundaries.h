// Decides which stages follow each other without a barrier, before slabs get memory and before the script is written.
#pragma once

#include "launch.h"
#include "stages_in_order.h"

#include <array>

class Boundaries {
public:
    // By direction, in order: stages that follow the previous stage without a barrier, and their first members.
    std::vector<i64> free[2];
    std::vector<size_t> free_at[2];
    bool turns = false;  // backward follows forward without a barrier

    explicit Boundaries(const LaunchPlan& launch) : launch_(launch) {}

    void add_pair(const Pair& pair, i64 answer) { answers_.emplace(key_of(pair), answer); }

    // Returns false if the answer for some pair is unknown: then the caller must answer the first unknown pair.
    // Groups of virtual processors are decided independently; a barrier across all groups follows forward.
    bool decide(bool in_groups)
    {
        since_ = {};
        all_known_ = true;
        const bool some = boundaries(false) || free[false].size() + 1 < n_stages_;
        members_.find(launch_.rows, true, false);
        turns = !in_groups && !launch_.call->seeded && some && since_.of_one_stage && !since_.pauses && members_.size() > 0 &&
                all_answer(0, members_.end_of_stage(0), Following::TURN);
        if (turns)
            since_.others = true;
        else
            since_ = {};
        boundaries(true);
        return all_known_;
    }

private:
    struct SinceBarrier {  // work that virtual processors have executed since their last barrier
        std::vector<std::pair<i64, i64>> groups;  // (block, group)
        bool of_one_stage = true;                 // all of it belongs to one stage
        bool others = false;                      // a block has begun that had no step in the previous stage
        bool pauses = false;                      // the signal for the next barrier has been given already
    } since_;

    const LaunchPlan& launch_;
    StagesInOrder members_;
    size_t n_stages_ = 0;
    bool all_known_ = true;
    std::map<std::array<i64, 4>, i64> answers_;

    static std::array<i64, 4> key_of(const Pair& pair) { return {pair.after, pair.before, pair.group, pair.following}; }

    // Decides one direction. Returns true if there are barriers inside stages.
    bool boundaries(bool backward)
    {
        members_.find(launch_.rows, backward, false);
        free[backward].clear();
        free_at[backward].clear();
        n_stages_ = 0;
        bool inside = false;
        for (size_t before = 0, begin = 0, end; begin < members_.size(); before = begin, begin = end) {
            end = members_.end_of_stage(begin);
            if (begin) {
                if (members_.goes_on(begin, before) && follows_freely(before, begin, end, backward)) {
                    free[backward].push_back(members_[begin].stage);
                    free_at[backward].push_back(begin);
                } else {
                    since_ = {};
                }
            }
            const size_t n_groups = members_.groups_of_stage(begin, end);
            inside |= n_groups > 1;
            if (n_groups > 1)
                since_ = {};
            since_.of_one_stage = since_.groups.empty();
            since_.pauses = false;
            for (size_t i = begin; i < end; i++) {
                const std::pair<i64, i64> last(members_[i].block, static_cast<i64>(n_groups) - 1);
                if (members_.groups(i).size() == n_groups &&
                    std::find(since_.groups.begin(), since_.groups.end(), last) == since_.groups.end())
                    since_.groups.push_back(last);
                since_.pauses |= launch_.model.n_vps > 1 && members_.fills(i);
            }
            n_stages_++;
        }
        return inside;
    }

    // Returns true if the stage at [end, after) may follow the one at [begin, end) without a barrier. If blocks begin,
    // any three stages must contain at least one barrier, because memory is reused one stage later (memory.h).
    bool follows_freely(size_t begin, size_t end, size_t after, bool backward)
    {
        bool others = false;
        for (size_t i = end; i < after; i++) {
            bool found = false;
            for (size_t j = begin; j < end; j++)
                found |= members_[j].block == members_[i].block;
            others |= !found;
        }
        const Following following = backward ? Following::BACKWARD : Following::FORWARD;
        const bool follows = !since_.pauses && (since_.of_one_stage || !(others || since_.others)) &&
                             all_answer(end, after, following);
        since_.others |= follows && others;
        return follows;
    }

    // Returns true if the steps at members [begin, end) may follow all work since the last barrier.
    bool all_answer(size_t begin, size_t end, Following following)
    {
        for (size_t i = begin; i < end; i++)
            for (const auto& before : since_.groups)
                if (!answer(members_.block(i), before, following))
                    return false;
        return true;
    }

    // Returns the answer for a pair. If it is unknown, marks the decision as incomplete.
    bool answer(const Block& after, const std::pair<i64, i64>& before, Following following)
    {
        const Pair pair{after.cell->id, launch_.rows.blocks[before.first].cell->id, before.second,
                        static_cast<i64>(following)};
        const auto known = answers_.find(key_of(pair));
        if (known != answers_.end())
            return known->second;
        if (all_known_)
            *pointer<Pair>(launch_.call->new_pair) = pair;
        all_known_ = false;
        return false;
    }
};
