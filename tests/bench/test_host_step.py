"""bench/host_step.py at a small scale: what its lines say, and that they agree with each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.programs import lines_of

pytestmark = pytest.mark.cpu


def test_lines_of_every_form(trees_file: Path) -> None:
    lines = lines_of(
        "host_step.py", "--trees", str(trees_file), "--batch-sizes", "1,4", "--hidden", "8", "--rounds", "2", "--shares"
    )
    forms = ("bulk", "cells", "ops")
    expected = [f"{kind}{form}-{n}" for form in forms for n in (1, 4) for kind in ("", "share-")]
    assert [line["case"] for line in lines] == expected
    found = {line["case"]: line for line in lines}
    for form in forms:
        one, four = found[f"{form}-1"], found[f"{form}-4"]
        for line in (one, four):
            assert line["unit"] == "ms"
            assert 0 < line["best"] <= line["value"]
            assert min(line[part] for part in ("building", "plan", "script")) > 0
            assert line["bytes"]["lists"] + line["bytes"]["instructions"] == line["bytes"]["script"]
            assert line["peak"] > 0
        assert one["bytes"]["lists"] < four["bytes"]["lists"]
        assert 0 <= found[f"share-{form}-1"]["value"] <= 1
    assert found["cells-4"]["bytes"]["script"] < found["ops-4"]["bytes"]["script"]
