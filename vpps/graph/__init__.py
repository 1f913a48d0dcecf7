"""What the user calls to build graphs: `Graph`, and the public functions on expressions.

Most functions derive from the op table (`derive.py`); those that do more than record one op are in `functions.py`. How
calls are stored is in `vpps.record`; `recorder.py` puts the part of it in use that is C++.
"""
