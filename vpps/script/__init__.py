"""Scripts: the instruction table, and the encoder, disassembler and verifier that derive from it.

`instructions.py` is the table, `access.py` defines the memory that instructions touch, and `slices.py` divides results
among virtual processors. This package knows about instructions, not graphs.

**Division of work.** With schedule `vector`, all virtual processors run the same stream, and each derives its slice
from its number. Results never depend on the division: one virtual processor computes each element, in an order that the
division does not change, so gradients are bitwise equal for any number of virtual processors. The gates of a stacked
product are parts of a row. A virtual processor owns the same units in each part, so the elementwise rest of a cell
follows its product with no barrier. If rows are too narrow, or an op needs whole rows (softmax), it owns rows instead.

**Barriers** use one signal counter. A virtual processor that has executed something since the last barrier signals.
Before it executes more, it waits for all signals given so far. A virtual processor without work in a level neither
signals nor waits. Its work is still ordered: others waited for its earlier signal, and then signalled.

**Verification.** `verify.py` executes the finished script on shadow memory with vector clocks. `wellformed.py` checks
the words of single instructions. Tests verify every script that they launch, and fill memory that it must not read with
NaN. `VPPS_VERIFY=1` verifies any program's scripts; `scripts/fuzz scripts` looks for faults that it misses.
"""
