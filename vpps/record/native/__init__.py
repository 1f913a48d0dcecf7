"""The compiled recorder, optional: C++ that does what `vpps.record.call_cache` does."""
