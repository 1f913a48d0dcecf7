// Policy `auto`: for each recurrence, and each size of it, the policy that is fastest by the cost model; that is decided
// in vpps/planner/policies/auto.py, which knows the costs.
#pragma once

#include "policies/sinks_last.h"

struct Auto : SinksLast {
    bool asks() const override { return true; }
    bool asks_by_size() const override { return true; }
};
