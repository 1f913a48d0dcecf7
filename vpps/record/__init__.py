"""Recording of the user's program: cells become traces, calls and maps become flat arrays.

A vertex is one call of a cell; a bare op is a vertex of a one-op cell. A graph has a block of vertices for each cell,
stored as flat ints (`vertices.py`) or as arrays recorded in bulk (`chunks.py`). `arrays.py` converts both to arrays and
merges them in recorded order. `call_cache.py` is the fast path for calls similar to earlier calls. Read `cell.py`,
`trace.py`, `bulk.py` first.

**Maps.** `graph.map` appends arrays to blocks. `map_cells.py` traces a vertex function or an ordinary cell to an
ordinary program. The program's arguments are the values that the vertex gathers and pulls; its first results are those
that the vertex scatters. Code below the graph never sees maps, so both forms give identical bits. One call of compiled
code records a map of the usual form (`packed.py`, `native/map.h`) into one buffer that the planner reads. `bulk.py`
records all other maps and reports errors.

**Equal ints** (`distinct=True`, `distinct.py`). Part of a cell may depend only on the vertex's ints. A map records that
part as a separate cell, once per distinct combination of ints. Its values have several readers, whose gradients are
summed before the products in backward.

Cells may take single children out of CSR lists by position, along with the list of the remaining children. The recorder
resolves these positions. `topology.py` finds the cells that form recurrences. Recurrences that do not read each other
have the same rank, so their levels share stages: a BiLSTM takes one barrier per level, not two.
"""
