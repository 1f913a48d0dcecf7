"""The compiled planner: optional, and quicker than the one in NumPy, whose scripts it writes word for word."""
