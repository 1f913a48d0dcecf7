"""Roofline: what a launch has to do (`work.py`), what the machine gives (`peaks.py`), the floor that follows
(`floors.py`).

`profiling/roofline.py` measures launches over it, `plot.py` draws.
"""
