"""Random graphs of random cells on the CUDA kernel agree with the reference, without races."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from random import Random

import pytest

import vpps
from tests import comparison
from tests.fuzz import graphs
from tests.gpu.conftest import with_default
from tests.kernels import know_all_of, widen
from tests.planner.test_random_graphs import check
from vpps.kernel import simt_compiler
from vpps.placement.onchip import ChipOptions
from vpps.runtime.simt import SimtMachine

pytestmark = pytest.mark.simt
FUSED = range(30, 40)


@pytest.fixture(autouse=True)
def one_and_three_virtual_processors(in_memory: None, monkeypatch: pytest.MonkeyPatch) -> None:
    compare = comparison.assert_agrees_with_reference
    monkeypatch.setattr(compare, "__defaults__", with_default(compare, "vp_counts", (1, 3)))


@pytest.mark.parametrize("part", range(6))
def test_random_graphs_agree_with_the_reference(part: int) -> None:
    for number in range(5 * part, 5 * part + 5):
        check(number)


@pytest.fixture
def one_fused_kernel(fused: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fuse cells. One kernel has the tails of all graphs in `FUSED`; it is not optimised."""
    monkeypatch.setattr(simt_compiler, "KERNEL_FLAGS", ("-O0", *simt_compiler.KERNEL_FLAGS[1:]))
    widen(monkeypatch, SimtMachine, know_all_of(SimtMachine, calls_of_fused()))


def calls_of_fused() -> Iterator[Callable[[], object]]:
    """Yield the handle calls that `check` makes for the graphs in `FUSED`."""
    for number, (vps, schedule) in product(FUSED, [(1, "vector"), (3, "vector"), (2, "paper")]):
        model, graph, used, loss = graphs.draw(Random(number)).build()
        with vpps.Handle(model, vps=vps, schedule=schedule) as handle:
            yield partial(handle.gradients, graph, loss)
            yield partial(handle.forward, graph, used)


@pytest.mark.usefixtures("one_fused_kernel")
def test_random_graphs_of_fused_cells_agree_with_the_reference() -> None:
    for number in FUSED:
        check(number)


@pytest.mark.parametrize("precision, part", [("bf16", 0), ("tf32", 1)])
def test_random_graphs_whose_products_round_agree_with_the_reference(precision: str, part: int) -> None:
    for number in range(5 * part, 5 * part + 5):
        check(number, precision=precision)


@pytest.mark.parametrize("groups, part", [(2, 0), (4, 1)])
def test_random_graphs_in_groups_agree_with_the_reference(groups: int, part: int) -> None:
    for number in range(100 + 3 * part, 103 + 3 * part):
        check(number, ChipOptions(groups=groups))
