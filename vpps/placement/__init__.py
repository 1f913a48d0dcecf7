"""Assigns memory to parameters, once per model: in the pool and, for a GPU, on the chip (`onchip/`).

There is one pool of float32 elements, addressed by 32-bit offsets. It starts with constants and loss slots, followed by
the parameters (packed weights, packed transposes, gradients, moments, averages: `distribution.py`). The batch's slabs
come last, with a new layout for each plan. The pool grows automatically up to `pool_limit`. A matrix is packed in
panels of rows, which fill the lanes of vector registers; every row is summed over the columns in order. The optimizer
updates the weights and their packed transpose together.

Master copies of matrices on the chip are row-major, so that every owner's load is contiguous. A step writes the new
weight there and into the transpose.

`update.py` describes the end of a launch. Accumulated gradients are kept in the gradient areas (a table gets one when
first needed). The planner and the verifier know which areas hold a gradient, and a held row is one more term in the
sums, so that clipping and update see the total. The update instruction also updates averages of the weights. Table rows
that earlier updates skipped catch up with the factor decay^k, which the script holds for each used row.
"""
