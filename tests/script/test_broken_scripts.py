"""A fixed part of `scripts/fuzz scripts`: the verifier accepts no broken script that is unsafe on the emulator."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import pytest

from tests.fuzz.scripts import outcomes
from tests.fuzz.subjects import Subject

pytestmark = pytest.mark.simt

FIRST, COUNT = 120, 40  # none of these runs for ever: detecting that takes half a minute


@pytest.mark.parametrize("name", ["tree, fused", "attention"])
def test_no_unsafe_script_is_accepted(name: str) -> None:
    subject = Subject.make(name)
    with closing(subject.handle):
        found = list(outcomes(subject, 0, range(FIRST, FIRST + COUNT)))
    defects = [str(o) for o in found if o.is_defect]
    assert not defects, "\n".join(defects)
    verdicts = Counter((bool(o.fault), bool(o.refusal)) for o in found)
    assert verdicts[True, True] > COUNT // 3  # otherwise nothing was tried
    assert verdicts[False, False] > COUNT // 10  # otherwise everything was refused
