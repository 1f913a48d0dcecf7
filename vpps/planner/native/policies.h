// Batching policies by their names. The table is rendered of policy_table.py when the library is built.
#pragma once

#include "policy_table.h"

// The row of a policy, or null where there is none.
inline const PolicyRow* policy_named(std::string_view name)
{
    for (const PolicyRow& row : POLICIES)
        if (row.name == name)
            return &row;
    return nullptr;
}
