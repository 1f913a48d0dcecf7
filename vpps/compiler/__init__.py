"""Compiles cells to instructions, once per cell: passes over nodes, lowering, passes over instructions, encoding.

    trace -> passes over nodes -> lower.py -> passes over instructions -> encoded_cell.py -> cell_descriptor.py
          -> the planner

`cells.py` runs all of this. The passes are in `passes/`. `barriers.py` places barriers, `slabs.py` lays out the memory
of a cell's values, and `arrangement.py` decides what a kernel is specialised to.

**Lowering** gives every computed node a slab: a 2-D array with a row per vertex in execution order. It emits
instructions over views: parts of a slab's rows, or rows found through an index list. In domain 0, each row stands for a
vertex; in domains from 1 on, for an element of a list argument.

- Operands inside a cell are `base + row * width`. Only arguments need index lists: their values are in other
  vertices' slabs.
- Slices are views. A concatenation that only products read takes no memory: products read segments. `W @ x + b` is one
  instruction.
- Backward is in gather form (`lower_backward.py`).
- **Weight gradients run once, after backward**, over all rows of a cell (Cavs's lazy batching): `column_sum`, and
  `outer` or, on a GPU, `outer_tiles` followed by `sum_tiles` or `step_tiles`.
- A computed matrix is stored as a row of floats, so reshapes and slices of its rows are views (`matrices.py`).
- Ops on all elements of a list run over vertices, and find the elements' rows through index lists.

**Encoding** (`encoded_cell.py`) happens once per cell: every word is `constant + base + per_row * first_row + per_count
* rows`. For a batch, the planner fills in a whole step at once, so the host's work is O(stages), not O(vertices x ops).

**Barriers** (`barriers.py`) are placed only between instructions that touch the same elements from different virtual
processors. This rule applies between steps, too. In backward, the transposed product of a level leaves the gradients of
the children's units with the owners of these units, so the next level begins at once and one barrier per level is
enough. This works because all steps of a cell use the same scratch memory.

**Schedules** (`schedule.py`): `vector`, and `paper` for comparison. In `paper`, a virtual processor's load is the
number of floats that it reads (four times that for products). Both schedules run on the same kernel, sum in the same
order and end a launch in the same way, so they give the same bits. Every comparison in the tests runs both.
"""
