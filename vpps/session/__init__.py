"""Implementation of `vpps.Handle`.

session: construction, closing and properties of a handle. halves: forward, backward and updates as separate calls.
data_parallel: training steps of several processes; gradient_sum: sums of their gradients. configurator: chooses and
exchanges configurations. tracing: blocks that record timelines. handle: the public class.

`fb` plans batch k while batch k-1 runs, waits for k-1, launches k and returns. Calls to a handle from several threads
run one after the other. A forward-only handle and `model.save` pull the newest weights from the training handle. After
Ctrl-C, a launch keeps running; the next call waits for it.

A configuration comprises every choice that does not change results: number of virtual processors, CPU tile, policy,
schedule, on-chip weight placement, passes. It also includes the precision, which only the user chooses. A handle
requests another configuration and gets it with its next call; the model carries weights and training state over. Stored
tuning results, `autotune` and recording for `trace` all use this mechanism. It never overrides the user's choices. If a
graph does not run in a configuration that tuning chose, the handle returns to the default.
"""
