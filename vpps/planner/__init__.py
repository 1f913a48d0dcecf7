"""What the host makes of a graph: order, slabs, index lists, script."""
