"""Writes train.jsonl and dev.jsonl: expressions of digits with + and *, and their values modulo 5."""

import json
import random
from pathlib import Path


def expression(rng):
    digits = [rng.randrange(10) for _ in range(rng.randint(1, 4))]
    signs = [rng.choice("+*") for _ in digits[1:]]
    value = digits[0]
    for digit, sign in zip(digits[1:], signs, strict=True):
        value = value + digit if sign == "+" else value * digit
    n = len(digits)
    # The digits come first, then the signs. A sign's children are the result before it and the next digit.
    return {
        "kind": ["num"] * n + ["op"] * (n - 1),
        "children": [[]] * n + [[n + k - 1 if k else 0, k + 1] for k in range(n - 1)],
        "columns": {"digit": digits + [None] * (n - 1), "op": [None] * n + signs},
        "graph": {"value": value % 5},
    }


if __name__ == "__main__":
    rng = random.Random(1)
    for name, n in (("train", 2000), ("dev", 200)):
        lines = [json.dumps(expression(rng)) for _ in range(n)]
        Path(f"{name}.jsonl").write_text("\n".join(lines) + "\n")
