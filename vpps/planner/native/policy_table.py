"""The table of batching policies, of which `policy_table.h` is made. ARCHITECTURE.md says how to add a policy."""

from __future__ import annotations

from typing import NamedTuple


class PolicyRow(NamedTuple):
    """A policy. It is the class of that name in `planner/native/policies/`.

    Attributes:
        name: that users know it by.
        whole: it batches whole graphs, as published; otherwise recurrences of several cells, and all else, where there
            is nothing to choose, level by level.
        learned: it needs what `vpps.learn_policy` returns.
    """

    name: str
    whole: bool = False
    learned: bool = False


POLICIES = {
    row.name: row
    for row in (
        PolicyRow("sinks-last"),
        PolicyRow("depth", whole=True),
        PolicyRow("agenda", whole=True),
        PolicyRow("sufficient"),
        PolicyRow("critical"),
        PolicyRow("fsm", learned=True),
    )
}
"""By name."""


def header() -> str:
    """`policy_table.h`: the files of all policies, and the same table."""
    included = "".join(f'#include "policies/{name.replace("-", "_")}.h"\n' for name in POLICIES)
    rows = "".join(
        f'    {{"{name}", {int(row.whole)}, {int(row.learned)}, make_policy<{name.title().replace("-", "")}>}},\n'
        for name, row in POLICIES.items()
    )
    return f"{included}\ninline constexpr PolicyRow POLICIES[] = {{\n{rows}}};\n"
