"""The compiled recorder, optional: C++ that does what `vpps.graph.quick` does."""
