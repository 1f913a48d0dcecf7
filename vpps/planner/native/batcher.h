// The stages of graphs by a policy: a part of the planner that also serves alone.
#pragma once

#include <utility>
#include "call.h"
#include "stages.h"

// Graphs of its cells, and the stages in which their vertices run by a policy.
class Batcher {
public:
    explicit Batcher(const PolicyRow& policy) : stages_(policy) {}
    virtual ~Batcher() = default;

    i64 add_cell(const GivenCell& cell)
    {
        cells_.push_back(std::make_unique<WholeCell>(WholeCell{cell, {}}));
        return static_cast<i64>(cells_.size()) - 1;
    }

    bool add_choice(const PolicyRow& policy, Numbers& from) { return stages_.choose(policy, from); }

    i64 unseen(i64 choice) { return std::exchange(stages_.choices[choice].unseen, 0); }

    Status stages(Call* call, i64* stages)
    {
        take_blocks(*call, cells_, graph_);
        if (!graph_.number() || graph_.read() >= 0)
            return Status::NO_VALUE;
        graph_.recurrences();
        call->new_block = stages_.find(graph_);
        if (call->new_block >= 0)
            return Status::NEW_RECURRENCE;
        for (const Whole& b : graph_)
            for (const i32 local : b.local)
                *stages++ = b.rank + local;
        stages_.count_unseen();
        return Status::DONE;
    }

protected:
    std::vector<std::unique_ptr<WholeCell>> cells_;
    Graph graph_;
    Stages stages_;
};

EXPORT void* vpps_batcher(const char* policy)
{
    const PolicyRow* row = policy_named(policy);
    return row ? new Batcher(*row) : nullptr;
}

EXPORT void vpps_batcher_free(void* batcher) { delete static_cast<Batcher*>(batcher); }

EXPORT i64 vpps_batcher_cell(void* batcher, const GivenCell* cell)
{
    return static_cast<Batcher*>(batcher)->add_cell(*cell);
}

EXPORT i64 vpps_batcher_choice(void* batcher, const char* policy, const i64* numbers, i64 n)
{
    const PolicyRow* row = policy_named(policy);
    Numbers from(numbers, n);
    return row && static_cast<Batcher*>(batcher)->add_choice(*row, from);
}

EXPORT i64 vpps_batcher_unseen(void* batcher, i64 choice) { return static_cast<Batcher*>(batcher)->unseen(choice); }

EXPORT Status vpps_stages(void* batcher, Call* call, i64* stages)
{
    return static_cast<Batcher*>(batcher)->stages(call, stages);
}
