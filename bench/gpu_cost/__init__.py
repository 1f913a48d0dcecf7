"""What a training step costs on a GPU that is not there: cost.py says how it is found out."""
