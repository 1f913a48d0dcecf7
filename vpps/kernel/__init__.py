"""Kernel source from templates, compiled binaries from source, both cached."""
