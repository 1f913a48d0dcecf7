"""What runs kernels: one module per target, behind one small interface."""
