"""The command line programs: a module for each, named like it.

`vpps-train` (`train.py` makes a command of each task's settings, `loop.py` trains), `vpps-data`, `vpps-profile`,
`vpps-inspect`, `vpps-cache`. `workload.py` has what profile and inspect work on, `streams.py` where each program
begins.
"""
