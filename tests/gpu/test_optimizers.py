"""Updates on a GPU equal the optimizers' references; test_slots.py tests weights on the chip."""

from __future__ import annotations

import pytest

from tests.model.test_optim import *  # noqa: F403

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("in_memory")]
