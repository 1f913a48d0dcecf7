"""What is trained, and what training keeps: parameters, optimizers, averages, checkpoints. Knows no graphs."""
