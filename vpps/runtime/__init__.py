"""Runs kernels: one module per target, behind one small interface.

`machine.py` defines the interface, selects the target's machine, and limits the growth of the pool. `cpu.py`, `simt.py`
(with `emulator.py`) and `cuda.py` (with `driver.py`, `device_pool.py` and `results.py`) implement it. `cores.py`
chooses the number of virtual processors. `recording.py` holds timelines; `stamps.py` holds timelines of thread blocks.

**cpu.** Threads sleep between launches on a condition variable. A barrier spins briefly (not at all if virtual
processors outnumber cores), yields a few times, then sleeps on a futex. The default is one virtual processor per core
that affinity and control-group quotas allow; with three or more cores, training leaves one core to Python. Signals and
waits use counters. Launch k uses the counters in array k & 1 and clears the other array.

**cuda.** `fb` queues launch k behind k-1 before it waits for k-1. A launch consists of a few driver calls without a
Python instruction in between, so after Ctrl-C it has either begun or not. If a launch is stopped, the queued launch
does nothing, and the host withdraws it. A wait polls with relaxed loads, then performs one acquire. A clock limit ends
a long wait, and the error names the place of every virtual processor. `tests/runtime/fake_cuda.py` simulates a GPU
whose kernels run in the emulator, so that whole `cuda` handles can be tested without a GPU.
"""
