"""Dropout on a GPU has the masks of the reference."""

from __future__ import annotations

import pytest

from tests.ops.test_dropout import *  # noqa: F403

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("in_memory")]
