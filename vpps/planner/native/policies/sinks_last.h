// Policy `sinks-last`: recurrences run level by level, all cells of a level together. This gives the fewest stages.
//
// Vertices that recurrences wait for run before them; vertices that no recurrence waits for run after them (Stages). On
// trees and chains, this gives as few batches as possible, and no more levels than `depth`.
#pragma once

#include "policies/policy.h"

struct SinksLast : Policy {
    bool by_level() const override { return true; }
};
