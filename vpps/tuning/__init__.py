"""Tuning: finds the fastest of several configurations for a model on a machine. All compute the same results.

`candidates.py` lists the configurations. `choices.py` stores the fastest ones in a file, from which handles read them.
`autotune.py` tries the candidates during training; `vpps-profile` uses separate batches (`vpps.cli.profile`).
"""
