// Schedule "vector": steps as vector instructions, in one stream for all virtual processors.
//
// The planner calls these functions of a schedule: `begin`, `steps` forward, `report`, `steps` backward,
// `end_backward`, and `meet` for each barrier across all virtual processors.
#pragma once

#include "boundaries.h"

class VectorSchedule {
public:
    VectorSchedule(LaunchPlan& launch, const Boundaries& boundaries) : launch_(launch), boundaries_(boundaries) {}

    void begin()
    {
        late_.clear();
        next_late_ = 0;
    }

    // Writes the forward steps of all stages, or the backward steps with the last stage first. Cells in a stage share
    // its barriers. In training, the caller adds the barrier after the last stage.
    void steps(bool backward)
    {
        if (backward && !boundaries_.turns && !launch_.call->seeded)
            barrier();
        members_.find(launch_.rows, backward, false);
        run(0, members_.size(), backward);
        if (!launch_.call->training && members_.size())
            barrier();
    }

    // Writes the instruction that reports the loss after the loss chain, once barriers allow it.
    void report()
    {
        members_.find(launch_.rows, false, true);
        for (size_t begin = 0, end; begin < members_.size(); begin = end) {
            end = members_.end_of_stage(begin);
            late_.emplace_back(members_.at(begin), members_.at(end));
        }
        late_.emplace_back();
    }

    // Writes a barrier after backward.
    void end_backward() { barrier(); }

    // Writes a barrier, and then everything that has waited for one.
    void meet(Reason reason)
    {
        launch_.set_reason(reason);
        barrier();
        launch_.set_reason(Reason::LOSS);
        while (next_late_ < late_.size())
            barrier();
    }

protected:
    LaunchPlan& launch_;
    const Boundaries& boundaries_;
    StagesInOrder members_;

    // Writes the stages of a group at [begin, end).
    void run(size_t begin, size_t end, bool backward)
    {
        const std::vector<size_t>& free = boundaries_.free_at[backward];
        auto next_free = std::lower_bound(free.begin(), free.end(), begin);
        for (size_t at = begin, next; at < end; at = next) {
            next = members_.end_of_stage(at);
            if (launch_.call->training && next_free != free.end() && *next_free == at)
                next_free++;
            else if (at != begin)
                barrier(members_[at].group);
            launch_.begin_stage(backward, members_[at].stage);
            stage(at, next, backward);
        }
    }

    // Writes a barrier for a group. Then writes the next stage of the loss chain, if one waits for a barrier.
    void barrier(i64 group = 0)
    {
        launch_.streams.barrier_of_group(group);
        if (next_late_ == late_.size())
            return;
        const auto& late = late_[next_late_++];
        if (late.empty())
            launch_.write_once(Origin::LOSS, launch_.model.loss);
        for (const StagesInOrder::StageStep& member : late) {
            const Block& b = launch_.rows.blocks[member.block];
            for (size_t k = 0; k < b.cell->forward.size(); k++)
                write(b, false, k, member.step);
        }
    }

private:
    std::vector<std::vector<StagesInOrder::StageStep>> late_;  // stages of the loss chain; an empty one is the report
    size_t next_late_ = 0;

    void stage(size_t begin, size_t end, bool backward)
    {
        const size_t n_groups = members_.groups_of_stage(begin, end);
        for (size_t k = 0; k < n_groups; k++) {
            if (k)
                barrier(members_[begin].group);
            // Steps that fill the pause of the barrier come last, after the signal.
            bool signals = false;
            for (const bool filling : {false, true})
                for (size_t i = begin; i < end; i++) {
                    const Block& b = members_.block(i);
                    if ((k == n_groups - 1 && members_.fills(i)) != filling)
                        continue;
                    if (filling && !signals) {
                        signals = true;
                        launch_.streams.signal_early(members_[begin].group);
                    }
                    write(b, backward, k, members_[i].step);
                }
        }
    }

    void write(const Block& b, bool backward, size_t k, i64 step)
    {
        const Groups& all = groups_of(b, backward);
        if (k >= all.size())
            return;
        for (const Group& group : all[k]) {
            launch_.note(backward ? Origin::BACKWARD : Origin::FORWARD, b, k, &group - all[k].data(), step);
            launch_.write_step(b, group.words, step);
        }
    }
};
