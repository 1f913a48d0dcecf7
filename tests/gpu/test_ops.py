"""Ops on a GPU agree with the reference: single ops, lists, computed matrices, dropout, products that round."""

from __future__ import annotations

import pytest

from tests.ops.test_dropout import *  # noqa: F403
from tests.ops.test_lists import *  # noqa: F403
from tests.ops.test_matrices import *  # noqa: F403
from tests.ops.test_on_targets import *  # noqa: F403
from tests.ops.test_rounded_products import *  # noqa: F403
from tests.simt.test_ops import all_precisions  # noqa: F401

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("in_memory")]
