"""Cells to instructions, once per cell: passes over nodes, lowering, passes over instructions, encoding."""
