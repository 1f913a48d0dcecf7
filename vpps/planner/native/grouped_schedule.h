// Schedule "vector" for groups of virtual processors: each group has separate steps and barriers.
// Barriers across all groups surround the vertices that the first group runs for all groups (grouping.h).
#pragma once

#include "vector_schedule.h"

class GroupedSchedule : public VectorSchedule {
public:
    using VectorSchedule::VectorSchedule;

    // Writes shared sources, then every group's own vertices, then the joining vertices; in reverse for backward.
    void steps(bool backward)
    {
        members_.find(launch_.rows, backward, false);
        for (i64 k = 0; k < PARTS; k++) {
            const i64 part = backward ? PARTS - 1 - k : k;
            bool any = false;
            for (size_t begin = 0, end; begin < members_.size(); begin = end) {
                end = begin + 1;
                while (end < members_.size() && members_.goes_on(end, begin))
                    end++;
                if (members_.part(begin) != part)
                    continue;
                any = true;
                run(begin, end, backward);
                barrier(members_[begin].group);
            }
            if (any)
                meet(Reason::GROUPS);
        }
    }

    void report() { launch_.write_once(Origin::LOSS, launch_.model.loss); }

    // A barrier across all groups already precedes this.
    void end_backward() {}

    void meet(Reason reason)
    {
        launch_.set_reason(reason);
        launch_.streams.barrier();
    }

private:
    static constexpr i64 PARTS = 3;
};
