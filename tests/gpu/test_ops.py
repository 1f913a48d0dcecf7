"""Ops agree with their references on a GPU."""

from __future__ import annotations

import pytest

from tests.compiler.passes.test_fusion import assert_same, every_elementwise_op
from tests.ops.test_on_targets import *  # noqa: F403

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("in_memory")]


def test_fused_ops_have_the_bits_of_instructions() -> None:
    model, batches = every_elementwise_op()
    assert_same(model, batches, (2, "vector"), (3, "paper"), target="cuda")
