"""Compiles cells to instructions, once per cell: passes over nodes, lowering, passes over instructions, encoding.

    trace -> passes over nodes -> lower.py -> passes over instructions -> encoded_cell.py -> cell_descriptor.py
          -> the planner

`cells.py` runs all of this. The passes are in `passes/`. `barriers.py` places barriers, `slabs.py` lays out the memory
of a cell's values, and `arrangement.py` decides what a kernel is specialised to.

**Lowering** gives every computed node a slab: a 2-D array with a row per vertex in execution order. It emits
instructions over views: parts of a slab's rows, or rows found through an index list. The rows of domain 0 are vertices;
those of domains from 1 on are elements of list arguments.

- Operands inside a cell are `base + row * width`. Only arguments go through index lists: they lie in other vertices'
  slabs.
- Slices are views. A concatenation that only products read has no memory: products read segments. `W @ x + b` is one
  instruction.
- Backward is in gather form (`lower_backward.py`).
- **Weight gradients run once, after backward**, over all rows of a cell (Cavs's lazy batching): `column_sum`, and
  `outer` or, on a GPU, `outer_tiles` followed by `sum_tiles` or `step_tiles`.
- A computed matrix is a row of floats, so reshapes and slices of its rows are views (`matrices.py`).
- Ops on all elements of a list count vertices and find the rows of the elements through index lists.

**Encoding** (`encoded_cell.py`) happens once per cell: every word is `constant + base + per_row * first_row + per_count
* rows`. For a batch the planner fills in a whole step at once, so the host's work is O(stages), not O(vertices x ops).

**Barriers** (`barriers.py`) stand only between instructions that touch the same elements from different virtual
processors. The rule also holds between steps. In backward, the transposed product of a level leaves the gradients of
the children's units with the owners of these units, so the next level begins at once and one barrier per level is
enough. For this, all steps of a cell use the same scratch memory.

**Schedules** (`schedule.py`): `vector`, and `paper` for comparison. The load of a virtual processor in `paper` is the
number of floats that it reads; products count four times. Both schedules run on the same kernel, sum in the same order
and share the end of the launch, so they give the same bits. Every comparison in the tests runs both.
"""
