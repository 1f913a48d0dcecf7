"""Table of batching policies; the source of `policy_table.h`. ARCHITECTURE.md says how to add a policy."""

from __future__ import annotations

from typing import NamedTuple


class PolicyRow(NamedTuple):
    """A policy, implemented by the class of the same name in `planner/native/policies/`.

    Attributes:
        name: public name.
        whole: True if the policy batches whole graphs, as published. Otherwise it batches recurrences of several cells;
            everything else is batched level by level, without a choice.
        learned: True if the policy needs the result of `vpps.learn_policy`.
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
"""Policies by name."""


def header() -> str:
    """Return `policy_table.h`: includes of all policies, and the table."""
    included = "".join(f'#include "policies/{name.replace("-", "_")}.h"\n' for name in POLICIES)
    rows = "".join(
        f'    {{"{name}", {int(row.whole)}, {int(row.learned)}, make_policy<{name.title().replace("-", "")}>}},\n'
        for name, row in POLICIES.items()
    )
    return f"{included}\ninline constexpr PolicyRow POLICIES[] = {{\n{rows}}};\n"
