// Policy `sinks-last`: recurrences level by level, all their cells side by side. That takes the fewest stages.
//
// What recurrences wait for runs before them, what nothing recurrent waits for after them (Stages). On trees and chains
// this launches as few batches as possible, with no more levels than `depth`.
#pragma once

#include "policies/policy.h"

struct SinksLast : Policy {
    bool by_level() const override { return true; }
};
