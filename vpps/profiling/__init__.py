"""Runs models to measure them: configurations against each other, launches against their floor."""
