"""A model in use: what `vpps.Handle` is made of.

session: from construction until it is closed, what a handle is apart from the calls that run something; configurator:
which configuration works, and exchanges between launches; tracing: blocks that record timelines; handle: what users
call.

`fb` plans batch k while batch k-1 runs, waits for it, launches, returns. Calls of a handle from several threads run one
after the other. A forward-only handle, or `model.save`, pulls the newest weights from the training handle. Ctrl-C
leaves a launch running, to be waited for by the next call.

All that may be chosen without changing what is computed is a configuration: virtual processors, tile of the CPU,
policy, schedule, places of the weights on the chip, passes; and, for the user alone to choose, the precision. A handle
asks for another one and gets it with its next call, weights and state of training passed on through the model.
Everything that changes the kernel in flight is made of that: what was found fastest before, `autotune`, recording for
`trace`. What the user chose stays; a configuration that tuning chose and that does not do for a graph is given up for
the default.
"""
