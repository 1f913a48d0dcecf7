"""What is rounded, of the tables of precisions and instructions (`vpps/ops/precision.py`, `vpps/script/`)."""

from __future__ import annotations

from collections.abc import Iterator

import instructions
from tables import code, escaped, table

from vpps.ops.precision import PRECISIONS
from vpps.script.instructions import Field, Kind

SIGNIFICAND = 24  # bits of a float32's, with the one that is not stored
STORED = ("weights", "gradient", "transposed", "average", "moment0", "moment1")
"""Fields that say where in memory numbers lie."""


def markdown(part: str) -> str:
    return "".join({"precisions": _precisions, "rounded": _rounded}[part]())


def _precisions() -> Iterator[str]:
    head = ("precision", "bits of a factor's significand", "bytes of a weight on a GPU's chip", "targets", "")
    targets = {True: "cpu, cuda, simt", False: "cuda, simt"}
    rows = [
        (code(p.name), str(SIGNIFICAND - p.dropped), str(p.element.bytes), targets[p.on_host], escaped(p.doc))
        for p in PRECISIONS.values()
    ]
    yield table(head, rows)


def _rounded() -> Iterator[str]:
    """A row for each form of the instructions that multiply by a parameter."""

    def named(fields: Iterator[Field]) -> str:
        return ", ".join(code(f.name) for f in fields)

    rows, n_others = [], 0
    for _, members in instructions.by_form():
        first, *more = members
        if not any(f.rounded for f in first.fields):
            n_others += len(members)
            continue
        others = (f for f in first.fields if not f.rounded)
        floats = named(f for f in others if f.kind in (Kind.OPERAND, Kind.SEGMENTS) or f.name in STORED)
        shown = ", ".join(code(i.name) for i in members[:2]) + (" ..." if more[1:] else "")
        rows.append((shown, escaped(first.doc), named(f for f in first.fields if f.rounded), floats))
    yield table(("instruction", "computes", "rounded", "float32"), rows)
    yield f"The {n_others} others round nothing.\n\n"
