"""Updates on a GPU are those that the optimizers' references make; where weights are on the chip: test_slots.py."""

from __future__ import annotations

import pytest

from tests.model.test_optim import *  # noqa: F403

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("in_memory")]
