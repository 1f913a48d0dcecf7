// Batching policies by name. The build generates the table from policy_table.py.
#pragma once

#include "policy_table.h"

// Returns the row of a policy, or null if the name is unknown.
inline const PolicyRow* policy_named(std::string_view name)
{
    for (const PolicyRow& row : POLICIES)
        if (row.name == name)
            return &row;
    return nullptr;
}
