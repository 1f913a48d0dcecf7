"""The table of batching policies, and the encodings of learned automata, of which `policy_table.h` and a part of
`interface.h` are made. ARCHITECTURE.md says how to add a policy."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class PolicyRow(NamedTuple):
    """A policy. It is the class of that name in `planner/native/policies/`.

    Attributes:
        name: that users know it by.
        whole: it batches whole graphs, as published; otherwise recurrences of several cells, and all else, where there
            is nothing to choose, level by level.
    """

    name: str
    whole: bool = False


POLICIES = {
    row.name: row
    for row in (
        PolicyRow("sinks-last"),
        PolicyRow("depth", whole=True),
        PolicyRow("agenda", whole=True),
        PolicyRow("sufficient"),
        PolicyRow("critical"),
        PolicyRow("fsm"),
        PolicyRow("auto"),
    )
}
"""By name."""

# Kinds of encodings, by their names in capital letters.
EncodingKind = IntEnum("EncodingKind", "BASE MAX SORT CRITICAL", start=0)
ENCODINGS = tuple(kind.name.lower() for kind in EncodingKind)


def header() -> str:
    """`policy_table.h`: the files of all policies, and the same table."""
    included = "".join(f'#include "policies/{name.replace("-", "_")}.h"\n' for name in POLICIES)
    rows = "".join(
        f'    {{"{row.name}", {str(row.whole).lower()}, made<{row.name.title().replace("-", "")}>}},\n'
        for row in POLICIES.values()
    )
    return f"{included}\ninline constexpr PolicyRow POLICIES[] = {{\n{rows}}};\n"
