"""The table of environment variables, of vpps/config.py."""

from __future__ import annotations

from tables import code, table

from vpps import config


def markdown() -> str:
    return table(
        ("variable", "default", "meaning"),
        ((code(v.name), code(v.default), v.doc.replace("<", r"\<")) for v in config.VARIABLES),
    )
