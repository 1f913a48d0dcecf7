"""Everything that only a GPU can tell: check.py runs the steps of stages.py."""
