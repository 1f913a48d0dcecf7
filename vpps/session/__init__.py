"""Implementation of `vpps.Handle`.

session: construction, closing and properties of a handle. halves: forward, backward and updates as separate calls.
data_parallel: training steps of several processes; gradient_sum: their sums of gradients. configurator: choice and
exchange of configurations. tracing: blocks that record timelines. handle: the public class.

`fb` plans batch k while batch k-1 runs, waits for k-1, launches k and returns. Calls of a handle from several threads
run one after the other. A forward-only handle and `model.save` pull the newest weights from the training handle. After
Ctrl-C a launch keeps running; the next call waits for it.

A configuration is every choice that does not change results: virtual processors, tile of the CPU, policy, schedule,
places of the weights on the chip, passes. It also has the precision, which only the user chooses. A handle requests
another configuration and gets it with its next call; the model carries weights and training state over. Stored tuning
results, `autotune` and recording for `trace` all use this mechanism. The user's choices stay. If a graph does not run
in a configuration that tuning chose, the handle returns to the default.
"""
