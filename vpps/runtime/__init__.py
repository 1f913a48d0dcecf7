"""What runs kernels: one module per target, behind one small interface.

`machine.py` is the interface, and says how far the pool grows. Behind it are `cpu.py`, `simt.py` on `emulator.py`, and
`cuda.py` on `driver.py` and `device_pool.py`. Which of them says `machine.py`, how many virtual processors suit a
machine `cores.py`. Memory for timelines is in `recording.py`, of thread blocks in `stamps.py`.

**cpu.** Threads sleep between launches on a condition variable. A barrier spins briefly (not at all where virtual
processors outnumber cores), yields a few times, then sleeps on a futex. By default there is one virtual processor per
core that affinity and control-group quotas allow; from three cores on training leaves one to Python. Signals and waits
use counters that launch k takes from array k & 1 while clearing the other.

**cuda.** `fb` puts launch k behind k-1 before it waits for k-1. A launch is a few driver calls made without a Python
instruction in between, so that Ctrl-C finds it begun or not; one behind a launch that was stopped does nothing, and the
host takes it back. A wait polls without order and acquires once. It ends by a clock limit, and the error names where
every virtual processor was. `tests/runtime/fake_cuda.py` is an imaginary GPU whose kernels run in the emulator: whole
handles on `cuda` are tested without one.
"""
