"""Tables and sentences of `vpps-profile`, of imaginary times."""

from __future__ import annotations

import numpy as np
import pytest

from vpps.cli.profile_tables import measured_table, notes, why_unsteady
from vpps.engine.configuration import Configuration
from vpps.profiling.measure import Measured
from vpps.profiling.search import Row, SearchOutcome

pytestmark = pytest.mark.host

DEFAULT = Measured(Configuration(), times=np.array([[2.0, 4.0]] * 4))
# In two turns the machine was slow, just when candidate 2 had its turn: by the median of its times it is no faster.
QUICK = Measured(Configuration(vps=2), times=np.array([[1.0, 2.0], [1.0, 2.0], [1.0, 5.0], [1.0, 5.0]]))
EVEN = Measured(Configuration(vps=1), times=np.array([[1.6, 3.0]] * 4))
BROKEN = Measured(Configuration(vps=3), reason="no compiler")


def outcome(*measured: Measured, best: Measured) -> SearchOutcome:
    rows = {id(m): Row(m, m.ratio(DEFAULT)) for m in measured}
    return SearchOutcome(tuple(rows.values()), rows[id(best)], 0, 0, (), len(rows))


def test_rows_are_in_the_order_of_what_decides() -> None:
    found = outcome(DEFAULT, BROKEN, EVEN, QUICK, best=QUICK)
    table = measured_table(found)
    assert list(table.columns[1].cells) == ["vps 2", "vps 1", "default", "vps 3"]
    assert list(table.columns[0].cells) == ["->", "", "", ""]
    assert list(table.columns[4].cells) == ["2.00", "1.29", "1.00", "-"]
    assert notes(found)[0].startswith("x default: median of the batch-by-batch ratios. A winner has 1.02 or more")


def test_the_winner_is_first_even_if_it_is_the_default() -> None:
    table = measured_table(outcome(DEFAULT, EVEN, best=DEFAULT))
    assert list(table.columns[1].cells) == ["default", "vps 1"]


def test_of_one_configuration_there_are_no_ratios_to_explain() -> None:
    assert notes(outcome(DEFAULT, best=DEFAULT)) == []


def test_times_that_vary_are_not_kept_unasked() -> None:
    noisy = Measured(Configuration(vps=2), times=np.array([[1.0], [2.0], [1.0], [2.0]]))
    assert why_unsteady(outcome(DEFAULT, EVEN, noisy, best=EVEN), 4) == ""
    for found in (outcome(DEFAULT, noisy, best=noisy), outcome(noisy, EVEN, best=EVEN)):
        assert why_unsteady(found, 4).startswith("times of one and the same batch vary by 67%")
    assert "more --rounds" in why_unsteady(outcome(DEFAULT, EVEN, best=EVEN), 1)
