"""Names have one meaning: no two classes share a name."""

from __future__ import annotations

import ast
from pathlib import Path

import vpps

ROOT = Path(vpps.__file__).parent
OF_TORCH = {"LSTM", "GRU"}  # vpps.nn and vpps.torch both have torch.nn's layers


def test_no_class_name_is_in_two_modules() -> None:
    """Private classes are exempt because only their module uses them."""
    where: dict[str, list[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    assert {name: modules for name, modules in where.items() if len(modules) > 1 and name not in OF_TORCH} == {}
