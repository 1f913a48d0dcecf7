"""Cells to instructions, once per cell: passes over nodes, lowering, passes over instructions, encoding.

    trace -> passes over nodes -> lower.py -> passes over instructions -> encoded_cell.py -> cell_descriptor.py
          -> the planner

`cells.py` runs the whole. Passes are in `passes/`; which barriers instructions need says `barriers.py`, what steps cost
`cost.py`, where a cell's values are kept `slabs.py`; `arrangement.py` says what a kernel is specialised to.

**Lowering** gives every computed node a slab (a 2-D array, a row per vertex in execution order) and emits instructions
over views: part of a slab's rows, or rows found through an index list. A row counts vertices in domain 0, the elements
of list arguments in domains from 1 on.

- Operands inside a cell are `base + row * width`. Only arguments go through index lists: they come from other vertices'
  slabs.
- Slices are views. A concatenation that only products read is never made: products read segments. `W @ x + b` is one
  instruction.
- Backward is in gather form (`lower_backward.py`).
- **Weight gradients run once, after backward**, over all rows of a cell: `outer` (on a GPU `outer_tiles`, then
  `sum_tiles` or `step_tiles`) and `column_sum` (Cavs's lazy
  batching).
- A computed matrix is a row of floats, so reshapes and slices of its rows are views (`matrices.py`).
- Ops that look at all elements of a list count vertices and find rows of elements by index lists.

**Encoding** (`encoded_cell.py`) happens once per cell: every word is `constant + base + per_row * first_row + per_count
* rows`. For a batch the planner fills in a step at once, so the host's work is O(stages), not O(vertices x ops).

**Barriers** (`barriers.py`) stand only between instructions that touch the same elements from different virtual
processors. The same question is asked between steps: in backward the transposed product of a level leaves gradients of
the children's units with those who own these units, so the next level begins at once. That leaves one barrier per
level. Scratch memory of a cell is at one place in all steps for that.

**Schedules** (`schedule.py`): `vector` and, kept to compare with, `paper`, whose load counts the floats read, those of
products four times. Both run on the same kernel, sum in the same order and share the end of the launch, so they give
the same bits; every comparison in the tests runs both.
"""
