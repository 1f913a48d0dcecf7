"""The optional compiled recorder: a C++ version of `vpps.record.call_cache`."""
