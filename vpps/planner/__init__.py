"""What the host makes of a graph, for every batch: order, slabs, index lists, script.

`planner.py` makes plans (`plan.py`) by a C++ library, `native/`, which is compiled when vpps is installed. What a
launch does not need is found when somebody asks, by planning the same vertices once more: who made which word
(`sections.py`), in which rows vertices are and what lies where from when to when (`blocks.py`). Reports and error
messages read that; the verifier checks the launch's own words against it. In which stage vertices run is up to
`policies/`.

Vertices that the loss does not depend on get no backward at all: zero times infinity must not reach a weight.

Scripts are compared by hash: `tests/planner/golden.json` has what the planner writes for random graphs and all tasks of
the zoo, over policies, schedules, groups and targets. A change that moves words on purpose
runs `python -m tests.planner.golden` and says why; a suite runs a fifth of them (`test_golden.py`).
"""
