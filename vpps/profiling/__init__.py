"""Runs models to measure configurations against each other."""
