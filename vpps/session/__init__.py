"""A model in use, between the facade `vpps.Handle` and what plans, compiles and runs.

engine: a model on a machine in one configuration; residency: the model and its copy in the pool kept in step; readback:
what a launch left there; losses: of steps, and what is done where they are not finite; nonfinite: where that began.
"""
