"""Recording of the user's program: cells become traces, calls and maps become flat arrays.

A vertex is one call of a cell; a bare op is a vertex of a one-op cell. A graph has a block of vertices per cell, stored
as flat ints (`vertices.py`) or as arrays recorded in bulk (`chunks.py`). `arrays.py` converts both to arrays and merges
them in recorded order. `call_cache.py` is the fast path for calls like earlier ones. Read `cell.py`, `trace.py`,
`bulk.py` first.

**Maps.** `graph.map` appends arrays to blocks. `map_cells.py` traces a vertex function or an ordinary cell to an
ordinary program. The program's arguments are what the vertex gathers and pulls; its first results are what the vertex
scatters. Code below the graph never sees maps, so both forms give the same bits. One call of compiled code records a
map of the usual form (`packed.py`, `native/map.h`) into one buffer that the planner reads. `bulk.py` records all other
maps and reports errors.

**Equal ints** (`distinct=True`, `distinct.py`). Part of a cell may depend only on the vertex's ints. A map records that
part as a separate cell, once per distinct combination of ints. Its values have several readers, and their gradients are
summed before backward's products.

Cells may take single children out of CSR lists by position, next to the list of the others. The recorder resolves these
positions. `topology.py` finds the cells that form recurrences. Recurrences that do not read each other have one rank,
so their levels share stages: a BiLSTM takes one barrier per level, not two.
"""
