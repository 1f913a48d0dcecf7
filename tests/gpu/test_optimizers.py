"""Updates on a GPU are those that the optimizers' references make."""

from __future__ import annotations

import pytest

from tests.test_optim import *  # noqa: F403

pytestmark = pytest.mark.gpu
