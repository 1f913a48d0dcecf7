"""Random graphs of random cells on the CUDA kernel agree with the reference, race-free."""

from __future__ import annotations

import pytest

from tests.plan.test_random_graphs import check, examples, random_graphs

pytestmark = [pytest.mark.simt, pytest.mark.usefixtures("in_memory")]

test_random_graph_agrees_with_the_reference = examples(40)(random_graphs(check))
