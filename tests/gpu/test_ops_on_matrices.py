"""Ops on computed matrices agree with their references on a GPU."""

from __future__ import annotations

import pytest

from tests.ops.test_matrices import *  # noqa: F403

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("in_memory")]
