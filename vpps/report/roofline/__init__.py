"""Roofline: what a launch has to do (`work.py`), what the machine gives (`peaks.py`), the floor that follows from both
(`floors.py`), what was measured over it (`measure.py`), and a picture (`plot.py`)."""
