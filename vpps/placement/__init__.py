"""Where parameters lie, once per model: in the pool, and on a GPU on the chip (`onchip/`).

There is one pool of float32, addressed by 32-bit element offsets. First come constants and loss slots, then the
parameters (packed weights, packed transposes, gradients, moments, averages: `distribution.py`), then the batch's slabs,
laid out anew for each plan. It grows by itself up to `pool_limit`. A matrix is packed by panels of rows, which fill the
lanes of vector registers; every row's sum runs over the columns in order. The optimizer updates the packed transpose
with it.

Master copies of matrices that the chip holds lie row after row, so that every owner's load is contiguous; a step writes
the new weight there and into the transpose.

`update.py` says what the end of a launch does. Accumulated gradients stay in the gradient areas (tables get one when
first needed); planner and verifier are told which hold something, and a held row is one more entry of the sums, so
clipping and update see the total. Averages of the weights move inside the update instruction; rows of tables that
updates pass by are caught up by decay^k, a factor per used row that comes with the script.
"""
