"""Where parameters lie, once per model: in the pool, and on a GPU in the slots of the chip."""
