"""Ops on lists of the CUDA kernel agree with their references, race-free."""

from __future__ import annotations

import pytest

from tests.ops.test_lists import *  # noqa: F403

pytestmark = [pytest.mark.simt, pytest.mark.usefixtures("in_memory")]
