"""The CUDA kernel's updates equal those of the optimizers' references, without races."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.model import test_optim as elsewhere
from tests.model.test_optim import *  # noqa: F403
from vpps.model import optim

pytestmark = [pytest.mark.simt, pytest.mark.usefixtures("in_memory")]


@pytest.fixture(autouse=True)
def fewer_virtual_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elsewhere, "VP_COUNTS", (1, 3))


@pytest.mark.parametrize("rule", [optim.SGD, optim.Adam], ids=lambda rule: rule.name)
def test_a_step_made_with_the_last_outer_product_gives_the_bits_of_one_made_apart(
    rule: Callable[..., optim.Optimizer],
) -> None:
    elsewhere.test_a_step_made_with_the_last_outer_product_gives_the_bits_of_one_made_apart(rule, (33, 70))
