"""Products that round agree with the reference that rounds, on a GPU."""

from __future__ import annotations

import pytest

from tests.ops.test_rounded_products import *  # noqa: F403
from tests.simt.test_rounded_products import all_precisions  # noqa: F401

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("in_memory")]
