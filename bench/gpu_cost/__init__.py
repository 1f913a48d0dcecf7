"""Estimates the cost of a training step on a GPU without one; cost.py explains the method."""
