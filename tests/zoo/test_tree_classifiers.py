"""What the networks over trees have in common. Gradients: `test_against_reference.py`."""

from __future__ import annotations

import pytest

import vpps
from vpps.data import graphs_of_trees, parse_tree
from vpps.zoo import ChildSumTreeLSTMSentiment

pytestmark = pytest.mark.host


def test_a_table_of_children_is_refused_where_lists_are_taken() -> None:
    network = ChildSumTreeLSTMSentiment(vpps.Model(), 5, embedding=4, hidden=6)
    batch = graphs_of_trees([parse_tree("(1 (2 not) (3 good))")], min_count=1)[:]
    with pytest.raises(vpps.VppsError, match="lists of children: read trees with lists=True"):
        network.loss(vpps.Graph(), batch)
