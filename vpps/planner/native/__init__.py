"""Planner library in C++, compiled when vpps is installed, and its interface to Python.

Python passes each cell once, as records (`compiler/records.py`, filled in by `compiler/cell_descriptor.py`), and each
batch as the recorder's arrays, without a copy (`inputs.py`). The library returns a `Status` to ask for missing facts: a
cell's parts, or permission for one step to follow another without a barrier. `interface.py` defines everything that
both languages share: structs, enums, constants, exported functions. The build generates `interface.h` from it
(`kernel/shared_types.py`), so the C++ compiler rejects unknown names and differing field offsets or signatures.
`planner/planner_library.py` makes the calls.

`planner.cpp` is the algorithm. All of its phases work on one `LaunchPlan` (`launch.h`):

- `graph.h` reads a call (`call.h`), and `components.h` finds recurrences;
- `stages.h` and `rows.h` assign stages and rows; `grouping.h` assigns groups of virtual processors;
- `memory.h` allocates slabs;
- `index_lists.h`, `row_lists.h` and `reverse_lists.h` write the part of the script before the instructions;
- a schedule writes the steps into instruction streams (`streams.h`): `vector_schedule.h` into one (`boundaries.h`
  decides its barriers), `grouped_schedule.h` and `paper_schedule.h` into several;
- `launch_end.h` writes gradients and the update (for lookup tables, with `used_tables.h`);
- `account.h` and `memory_map.h` report, on request, the origin of each word and the memory map.

**Start of backward**: backward begins after the vertices that the loss's scalar arithmetic reads (`loss_chain.h`). The
forward of that arithmetic runs alongside backward, after barriers that exist anyway. Before slabs get memory,
`boundaries.h` decides which stages follow each other without a barrier, including stages of different cells and the
change from forward to backward; memory is then freed one stage later. A Tree-LSTM's step takes two barriers per level
plus six.

**Memory of slabs** (`memory.h`). The lifetime of a slab is a range of periods. In training, vertex values and the
operands of weight gradients are kept; all other memory is reused. In inference, values live until their last reader has
run. The arena is a first-fit allocator. Slabs are 5 cache lines apart: a tail reads some fifteen at once, and with
whole pages between them, their rows would fall into one set of the cache. A cell's argument gradients are read only by
the producers, a few levels later. So steps of a block share slots, as many as are in use at a time: a chain or pyramid
needs memory for a few levels. A slot is reused one executed stage after its last reader, because barriers between steps
may be left out. No more than two steps of such a cell run without a barrier between them. Cells that never wait keep
their slots to the end.

**Policies** each have a file in `policies/`. `typed_graph.h` represents a recurrence, or a whole graph, as typed
vertices. `execution.h` runs it batch by batch and maintains the data that policies use: the ready vertices, the longest
chains that a batch shortens, and the counts for the ratio in ED-Batch's lemma 2.1. For each vertex and type, it counts
the edges from vertices that depend on the type; updates cost O(edges x types) in all. Consecutive batches share a stage
while none of them reads the stage's results; `stages.h` combines recurrences with the rest. It finds a learned policy's
automata (`automaton.h`) by the digests of a recurrence's cells. `learning.h` learns them; `typed_graphs.py` offers both
for graphs that are not planned.
"""
