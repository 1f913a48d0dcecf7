"""What may be chosen freely because results do not depend on it, and choosing it."""
