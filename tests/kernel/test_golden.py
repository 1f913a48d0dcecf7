"""The rendered source of a model equals the reviewed source."""

from __future__ import annotations

import difflib

import pytest

from tests.kernel.golden import COMMAND, FILES, FOLDER, rendered

pytestmark = pytest.mark.host


@pytest.mark.parametrize("name", FILES)
def test_the_source_of_a_small_model_is_the_one_that_was_read(name: str) -> None:
    expected, found = (FOLDER / name).read_text(encoding="utf-8"), FILES[name]()
    lines = expected.splitlines(True), found.splitlines(True)
    changed = "".join(difflib.unified_diff(*lines, name, "rendered now", n=1))
    assert found == expected, (
        f"the kernel's source has changed; if that is intended, write it anew with `{COMMAND}`, read it as somebody "
        f"would who sees it for the first time, and commit it:\n{changed[:4000]}"
    )


def test_the_kernel_itself_fits_on_a_screen() -> None:
    _, kernel = rendered().split("// ---- the kernel")
    assert len(kernel.splitlines()) <= 50
    assert max(map(len, kernel.splitlines())) <= 130


def test_no_hole_is_left_open() -> None:
    source = rendered()
    assert "{{ " not in source
    assert "{%" not in source
    assert "\n\n\n" not in source
    assert not any(line != line.rstrip() for line in source.splitlines())
