"""Tuning: which of a list of configurations is the fastest for a model on a machine. What is computed stays the same.

`candidates.py` has the list, `choices.py` the file of what was fastest, which handles read. `autotune.py` tries the
list on the batches that are trained anyway, `vpps-profile` on batches of its own (`vpps.cli.profile`).
"""
