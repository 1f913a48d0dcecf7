"""Model state: parameters, optimizers, averages and checkpoints. This package is independent of graphs."""
