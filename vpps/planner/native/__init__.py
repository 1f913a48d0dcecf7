"""What plans: C++, compiled when vpps is installed, and what Python says to it.

Cells come once, as records (`compiler/records.py`, filled in by `compiler/cell_descriptor.py`), which C++ reads by
constructors of the same header; batches come as the arrays of the recorder, without a copy (`inputs.py`). The library
asks (`Status`) for what it does not know: the parts of a cell, and whether steps may follow each other freely.
What both languages share - structs, enums, constants, exported functions - is
defined in `interface.py`, of which `interface.h` is rendered when the library is built (`kernel/shared_types.py`): the
compiler refuses a name that Python does not have, a field that lies elsewhere, another signature.
`planner/planner_library.py` makes the calls.

`planner.cpp` is the algorithm. All of its stages work on one `Launch` (`launch.h`):

- `graph.h` reads a call (`call.h`), `components.h` finds recurrences;
- `stages.h` and `rows.h` arrange it; `grouping.h` deals it to groups of virtual processors;
- `memory.h` gives out slabs;
- `index_lists.h`, `row_lists.h` and `reverse_lists.h` place what precedes the instructions;
- a schedule writes the steps into streams of instructions (`streams.h`): `vector_schedule.h` into one (`boundaries.h`
  decides its barriers), `grouped_schedule.h` and `paper_schedule.h` into several;
- `launch_end.h` writes gradients and update (`used_tables.h`: of lookup tables);
- `account.h` and `memory_map.h` note, where asked, what was made and what lies where.

**Where backward begins**: behind the scalar arithmetic that makes the loss (`loss_chain.h`), whose forward runs beside
backward, behind barriers that come anyway. `boundaries.h` decides before slabs get memory which stages follow each
other without a barrier, also of other cells and from forward to backward; memory is then given away one stage later. A
Tree-LSTM's step takes two barriers per level and six more.

**Memory of slabs** (`memory.h`). A slab has a life, from which period to which it holds something: in training values
of vertices and what weight gradients read stay and the rest gives way, in inference values live until their last reader
has run. An arena gives the first hole that fits. Slabs lie 5 cache lines apart: a tail runs along some fifteen at once,
and whole pages apart their rows would meet in one set of the cache. Gradients that a cell hands back to the makers of
its arguments are read a few levels later and by nothing else: steps of a block take turns in as many slots as are in
use at a time, so a chain or pyramid needs memory for a few levels of them. A slot changes hands one executed stage
after its last reader, because barriers between steps may be left out, but no third step of such a cell runs without a
barrier after two others; cells that never wait keep theirs to the end.

**Policies** are a file each in `policies/`. `typed_graph.h` has a recurrence, or a whole graph, as vertices of types.
`execution.h` runs it batch by batch and keeps what policies ask about: which vertices are ready, which longest chains a
batch shortens, and per vertex and type how many producers still lead from a vertex of the type, so that the ratio of
ED-Batch's lemma 2.1 follows each batch at O(edges x types) in all. Batches become stages: one after the other share a
stage while none reads what the stage has computed; `stages.h` puts recurrences and all else together. It knows a
learned policy's automata (`automaton.h`) by the digests of a recurrence's cells. `learning.h` learns them;
`typed_graphs.py` has both for graphs that nobody plans.
"""
