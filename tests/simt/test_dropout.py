"""Dropout of the CUDA kernel has the masks of the reference, race-free."""

from __future__ import annotations

import pytest

from tests.ops.test_dropout import *  # noqa: F403

pytestmark = [pytest.mark.simt, pytest.mark.usefixtures("in_memory")]
