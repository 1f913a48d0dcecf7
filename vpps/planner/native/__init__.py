"""What plans: C++, compiled on first use, and what Python says to it."""
