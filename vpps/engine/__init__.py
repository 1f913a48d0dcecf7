"""Runs one model on one machine in one configuration: launches kernels, moves data in and out, measures time.

`engine.py` launches. `parameter_store.py` synchronizes the model with its copy in the pool, and `readback.py` reads
results from the pool. `losses.py` and `nonfinite.py` report losses and non-finite values. `options.py` holds the
options of a handle, `configuration.py` those that do not change results, and `memory.py` counts memory. `ahead.py`
compiles kernels ahead of time (`specialize`, `Handle(example=)`). `explanation.py` writes the text of `explain()`.
`timeline.py` holds the records of a launch; `activity.py` names each record in the user's words.

**No step changes a weight unless its loss and gradients are finite** (`templates/guard.cuh`,
`planner/native/launch_end.h`). On a GPU, the kernel tests the partial tiles of a matrix's gradient. For all other
gradients, `watch` runs after backward and bounds each gradient by the dy and x that it sums. `guard` runs after the
gradients, or before them if updates are fused with them; a barrier precedes it. It ends the launch on all virtual
processors if the loss is not finite, or if a gradient or its square (for optimizers) may not be finite. With clipping,
the norm gives the answer. The host reads the skip flag beside the loss and undoes the step's bookkeeping; the reference
implementation finds the origin. A step with averages or accumulated gradients depends on the answer and is not queued.
"""
