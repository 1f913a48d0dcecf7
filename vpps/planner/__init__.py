"""Planner: turns the graph of each batch into an execution order, slab addresses, index lists and a script.

`planner.py` makes plans (`plan.py`) with a C++ library, `native/`, which is compiled when vpps is installed. A plan
holds only what the launch needs. Everything else is computed on request, by planning the same vertices again: the
origin of each word (`sections.py`), the vertices' rows and the arrays' lifetimes (`blocks.py`). Reports and error
messages use these; the verifier checks the launch's words against them. The batching policies (`policies.py`,
`native/policies/`) choose the stage of each vertex.

Vertices that the loss does not depend on get no backward at all: zero times infinity must not reach a weight.

Tests compare scripts by hash: `tests/planner/golden.json` has hashes of the planner's output for random graphs and all
zoo tasks, with various policies, schedules, groups and targets. After an intended change, run
`python -m tests.planner.golden` and explain it. A test run checks a fifth of the hashes (`test_golden.py`).
"""
