"""200 random graphs agree with the reference on a GPU."""

from __future__ import annotations

import pytest

from tests.plan.test_random_graphs import *  # noqa: F403

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("configuration")]
