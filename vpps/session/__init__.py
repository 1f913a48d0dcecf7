"""A model in use: what `vpps.Handle` is made of.

session: from construction until it is closed, what a handle is apart from the calls that run something; options: what a
handle takes, one table; configurator: which configuration works, and exchanges between launches; tracing: blocks that
record timelines; engine: a model on a machine in one configuration; residency: the model and its copy in the pool kept
in step; readback: what a launch left there; losses: of steps, and what is done where they are not finite; nonfinite:
where that began; explained: what `explain()` says; serialised: one thread at a time.
"""
