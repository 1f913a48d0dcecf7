"""Kernels that tests widen, so that few are compiled, can still be rendered and run what was asked for."""

from __future__ import annotations

import re

import pytest

import vpps
from tests.kernel.programs import tree_lstm
from tests.kernels import EVERYTHING, know_everything_in_memory, know_gradients, know_the_end_of_launches
from vpps.engine.ahead import specs
from vpps.kernel.chip import MEMORY_ONLY
from vpps.kernel.render import render_cuda
from vpps.kernel.spec import KernelSpec
from vpps.placement.onchip import known_device
from vpps.placement.update import Update

pytestmark = pytest.mark.host


@pytest.mark.parametrize("widened", [know_everything_in_memory, know_the_end_of_launches, know_gradients])
def test_kernels_still_do_what_they_did(widened: object) -> None:
    """Tails included, which a kernel needs the instruction for."""
    update = Update(vpps.SGD(lr=0.1), 1, 1, None)
    found = specs(*tree_lstm(8), known_device("H200"), 4, update, 0, vpps.ChipOptions(), passes=vpps.Passes())
    on_chip = next(found)[0]
    in_memory = KernelSpec(on_chip.instructions, MEMORY_ONLY, on_chip.tails)
    for spec in (on_chip, in_memory):
        assert spec.tails
        assert widened(spec).covers(spec)  # type: ignore[operator]
        render_cuda(widened(spec))  # type: ignore[operator]


def test_everything_is_rendered_without_tails_of_cells_that_are_not_there() -> None:
    source = render_cuda(know_everything_in_memory(KernelSpec(frozenset())))
    assert re.search(r"case \d+: matvec", source)
    assert not re.search(r"case \d+: tail\(", source)
    assert {"matvec", "outer", "update_matrix.adam"} < EVERYTHING
