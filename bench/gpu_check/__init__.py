"""Checks that need a GPU: check.py runs the steps of stages.py."""
