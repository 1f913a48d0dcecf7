"""Reads files into `GraphSet`s. Every reader accepts several files, plain or `.gz`, and an existing set, `like`.

Evaluation data must use the training data's word and label numbers. `like=train` copies these numbers and the arity
from the training set. Unknown words become 0; unknown labels raise an error.
"""
