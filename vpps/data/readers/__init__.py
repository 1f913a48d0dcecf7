"""From files to `GraphSet`s. All readers take several files, plain or `.gz`, and `like`, a set converted before.

What is converted for evaluation needs the numbers of words and labels that training saw: `like=train` takes them,
and the arity, from there. Words that it does not know become 0; labels that it does not know are an error.
"""
