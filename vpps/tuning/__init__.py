"""What may be chosen freely because results do not depend on it, and choosing it.

`candidates.py` says what is tried, `compiling.py` and `jobs.py` compile it in processes of their own, `online.py` tries
it on the batches that are trained anyway (`autotune.py`), `vpps.profiling` on a copy of the model. `database.py` keeps
what was fastest, `machines.py` what policies learned; handles look into both. Online a gain of 2 % counts. Tiles change
how sums are stored, never their order: bits stay.
"""
