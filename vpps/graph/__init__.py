"""Graph building: `Graph`, and the public functions on expressions.

Most functions are derived from the op table (`derive.py`); functions that record more than one op are in
`functions.py`. `vpps.record` stores the calls; `recorder.py` installs its C++ part.
"""
