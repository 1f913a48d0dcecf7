"""Scripts: the instruction table and what derives from it: encoder, disassembler, verifier.

`instructions.py` is the table, `access.py` says what instructions touch, `slices.py` whose slice of the result is
whose. This room knows instructions, not graphs.

**Who computes what.** With schedule `vector` all virtual processors run the same stream; each derives its slice from
its number. Results never depend on the division: every element is computed by one, in an order that the division does
not change, so gradients are bitwise equal for any number of them. A stacked product has its gates as parts of a row;
one owns the same units in each of them, so that the elementwise rest of a cell follows its product with no barrier.
Where rows are too narrow for that, or an op needs whole rows (softmax), one owns rows.

**Barriers** are one counter of signals. Who executed something since the last barrier signals; before executing
anything more, it waits for all signals given so far. Who takes no part in a level neither signals nor waits, and is
ordered all the same: others waited for it, then signalled.

**Verification.** `verify.py` executes the finished script on shadow memory with vector clocks; `wellformed.py` says
what the words of an instruction must be by themselves. Tests verify every script they launch, and fill what it must not
read with NaN; `VPPS_VERIFY=1` does so for any program, and `scripts/fuzz scripts` looks for what the verifier misses.
"""
