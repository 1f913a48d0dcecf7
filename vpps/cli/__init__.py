"""Command line programs; each program has a module of the same name.

The programs are `vpps-train` (`train.py` turns task settings into commands, `loop.py` trains), `vpps-data`,
`vpps-profile`, `vpps-inspect` and `vpps-cache`. `workload.py` loads the models and batches for profile and inspect;
`streams.py` starts every program.
"""
