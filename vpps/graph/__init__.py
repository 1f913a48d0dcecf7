"""What the user writes: expressions, cells, graphs."""
