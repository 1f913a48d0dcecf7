"""A model on a machine in one configuration: launches, what they read and leave behind, how long they took.

`engine.py` launches. `parameter_store.py` keeps the model and its copy in the pool in step, `readback.py` reads what a
launch left there; `losses.py` and `nonfinite.py` are of the losses of steps, and where they are not finite.
`options.py` says what a handle takes, `configuration.py` what of it may be chosen freely, `memory.py` where memory
went. `ahead.py` makes kernels ahead (`specialize`, `Handle(example=)`), `explanation.py` has what `explain()` says.
`timeline.py` has what a launch recorded, `activity.py` what for, in the user's words.

**No step changes a weight unless loss and gradients are finite** (`templates/guard.cuh`,
`planner/native/launch_end.h`). On a GPU partial tiles of a matrix's gradient tell whether they are. For all else
`watch` reads, behind backward, what a gradient is a sum of, dy and x, which bounds it. If steps go with their gradients
that must be known before: a barrier follows, and `guard` ends the launch for all if the loss is not finite, or a
gradient may not be, or its square, which optimizers make. With
clipping the norm says it. The host reads whether the step was left out beside the loss and takes back what it noted;
where it began the reference finds out. A step that depends on that - averages, accumulated gradients - is not queued
behind another.
"""
