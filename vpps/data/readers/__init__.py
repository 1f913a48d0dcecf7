"""Reads files into `GraphSet`s. All readers take several files, plain or `.gz`, and `like`, an existing set.

Evaluation data needs the word and label numbers of the training data. `like=train` copies these numbers and the arity
from the training set. Unknown words become 0; unknown labels raise an error.
"""
