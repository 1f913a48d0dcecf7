"""How what the user writes is taken down: cells as traces, calls and maps as flat arrays.

A vertex is one call of a cell; a bare op is a vertex of a cell of one op. A graph has a block of vertices for each
cell, as flat ints (`vertices.py`) or as arrays recorded in bulk (`chunks.py`); `arrays.py` makes arrays of both and
merges them in recorded order. `call_cache.py` records calls like earlier ones. Read `cell.py`, `trace.py`, `bulk.py`
first.

**Maps.** `graph.map` appends arrays to blocks. `map_cells.py` traces a vertex function, or an ordinary cell, to an
ordinary program whose arguments are what it gathers and pulls and whose first results are what it scatters. Nothing
below the graph knows of maps, so both forms give the same bits. Maps of the usual form are recorded by one call of
compiled code (`packed.py`, `native/map.h`), in one piece of memory that the planner reads; whatever is unusual is left
to `bulk.py`, which also says what is wrong.

**Equal ints** (`distinct=True`, `distinct.py`). A map records what follows from a vertex's ints alone once for equal
ints, as a cell of its own: values with several readers, whose gradients are summed before backward's products.

Cells may take single children out of CSR lists, by place, beside the list of the others; that is settled while the map
is recorded. Which cells form recurrences says `topology.py`. Recurrences that do not read each other have one rank,
so their levels share stages: a BiLSTM takes one barrier per level, not two.
"""
