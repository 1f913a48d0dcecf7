"""The compiled recorder, optional: C++ that does what `vpps.record.quick` does."""
