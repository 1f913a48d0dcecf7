"""Random cases against oracles: cells, graphs, maps, histories of training, damaged files, Ctrl-C. `scripts/fuzz` runs
them, tests run a fixed part; a case that fails is made smaller and printed as a program.
"""
