"""Random cells as data, and the source of their functions: tests, fuzzing and printed programs use the same text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

WIDTHS = (3, 8, 32, 70)  # narrower than a panel, one panel, several, and several with a remainder
SHAPES = {3: (3, 1), 8: (2, 4), 32: (4, 8), 70: (10, 7)}  # vectors of these widths as matrices
ROWS = 6  # rows of a table

# Values a, b; lists X, Y; parameters by letter, number and width. The number is drawn.
PLAIN = (
    "vpps.tanh({a} + {b})", "vpps.sigmoid({a}) * {b}", "{a} - {b} * 0.5",
    "vpps.sigmoid(vpps.split({U} @ vpps.concat([{a}, {b}]) + {B}, 3)[1]) * vpps.tanh({a})",
    "sum(vpps.sigmoid(part) * {a} for part in vpps.split({U} @ vpps.concat([{b}, {a}]) + {B}, 3))", "{W} @ {a}",
    "vpps.relu({W} @ {a} + {b})", "vpps.tanh({W} @ {a} + {V} @ {b} + {p})",
    "vpps.sigmoid({W} @ {a}) * vpps.tanh({Q} @ {a}) + {R} @ {a}", "vpps.tanh({Q} @ {a}) * vpps.sigmoid({W} @ {a})",
    "vpps.softmax({a}) * {p}", "vpps.concat([{b}[{half}:], {a}[:{half}]])",
    "vpps.concat([{a}, {b}])[{third} : {third} + {w}]",
    "vpps.concat(vpps.split({T} @ {a}, 2)[::-1])[{third} : {third} + {w}]", "vpps.tanh({T} @ {a})[{w}:] + {p}",
    "vpps.tanh({a}) * vpps.tanh(vpps.dot({a}, {b}))", "vpps.tanh({a}) * vpps.mean({b}) + {p}[{last}]",
    "vpps.log_softmax({a} + {b}) * 0.1 + {a}", "vpps.tanh(vpps.outer({a}, {b}) @ {b} * (1 / {w}))",
    "vpps.tanh(vpps.reshape(vpps.reshape({a}, {tall}) @ vpps.reshape({b}, {flat}) @ vpps.reshape({p}, {tall}), {w}))",
    "vpps.tanh(vpps.reshape(vpps.reshape({a}, {tall}).T, {w}) + {b})",
    "vpps.tanh(vpps.reshape(vpps.transpose({L} @ vpps.reshape({a}, {tall})), {w}) + {b})",
    "vpps.reshape(vpps.concat([vpps.reshape({a}, {tall})[{r} - 1 :], vpps.reshape({b}, {tall})[: {r} - 1]]), {w})",
    "vpps.square(vpps.tanh({a})) + vpps.tanh({b})", "vpps.dropout({a}, 0.3)", "vpps.layer_norm({a} + {p}) * 0.5",
    "vpps.maximum({a}, {b} * 0.7)", "vpps.gelu({a}) - vpps.stop_gradient({b})",
    "vpps.tanh({a} * vpps.cosine({a}, {p}) + {b})",
    "vpps.where({a} > {b}, vpps.silu({a}), {b} * 0.5) - ({b} <= 0.1) * {p}",
    "vpps.where({a} < 0.3, 0.4, vpps.sin({a})) + vpps.cos({b}) * vpps.where({p} >= {a}, {b}, -0.2)",
    "vpps.tanh({a} * vpps.norm({b} - {p}) * 0.2) + abs({a} - {a})",
    "vpps.logsumexp([{a}, {b}]) + vpps.stack([{a}, {b}])[1]", "vpps.tanh({T}.T @ vpps.concat([{a}, {b}]))",
    "vpps.tanh(vpps.reshape({L}.T @ vpps.reshape({a}, {tall}), {w}) + {T}[{last}])",
    "vpps.tanh(vpps.reshape(vpps.tanh({L} * 2) @ vpps.reshape({a}, {tall}), {w}) + vpps.lookup({T}, {w}))",
    "vpps.tanh(vpps.reshape(vpps.reshape({a}, {tall}) * 0.5 - vpps.reshape({b}, {tall})[{r} - 1], {w}))",
)  # fmt: skip
LISTS = (
    "vpps.sum({X})",
    "vpps.mean({Y})",
    "vpps.sum(vpps.each(lambda x: vpps.sigmoid({W} @ x + {a}) * {b}, {X}))",
    "vpps.mean(vpps.each(lambda x: vpps.tanh(x[0] * {b}) - {a}, {Y}))",
    "vpps.sum(vpps.each(lambda x: {V} @ x * {b}, {X}))",
    "vpps.sum(vpps.each(lambda s, x: s * x, vpps.softmax(vpps.each(lambda x: vpps.dot(x, {a}) * 0.3, {X})), {X}))",
    "vpps.max({Y}) + vpps.min(vpps.each(lambda x: vpps.tanh(x) * {b}, {X}))",
    "vpps.mean(vpps.each(lambda s, x: s * vpps.tanh(x), vpps.softmax({X}), {X})) - {a}",
    "vpps.sum(vpps.each(lambda x: vpps.concat([x, {b}])[{third} : {third} + {w}], {X}))",
    "vpps.mean(vpps.each(lambda x: vpps.tanh(vpps.concat([{b}, x])[:{w}]), {Y}))",
    "vpps.maximum(vpps.logsumexp({X}), {a})",
)


class Op(NamedTuple):
    """An operation: its index, its values, its parameters. Any ints are valid."""

    which: int
    a: int
    b: int


@dataclass(frozen=True)
class Cell:
    """The contents of a random cell: maps vectors of one width, lists of them and optionally a table row to vectors.

    Attributes:
        width: an index of `WIDTHS`.
        vectors: number of vector arguments.
        lists: number of list arguments.
        row: True for an int argument, a row of a table.
        own: True if a vector argument "x" comes last.
        ops: operations, each of which reads arguments and earlier results.
        results: further results besides the last value, counted backward from it.
    """

    width: int
    vectors: int
    lists: int
    row: bool
    own: bool
    ops: tuple[Op, ...]
    results: tuple[int, ...] = ()

    @property
    def w(self) -> int:
        """Return the cell's width."""
        return WIDTHS[self.width % len(WIDTHS)]

    @property
    def arguments(self) -> list[str]:
        """Return the arguments' names."""
        named = [f"v{i}" for i in range(self.vectors)] + [f"xs{i}" for i in range(self.lists)]
        return named + ["row"] * self.row + ["x"] * self.own

    def source(self, name: str) -> list[str]:
        """Return the cell as lines of Python; parameters are free names, which `declarations` defines."""
        w, arguments = self.w, self.arguments
        (r, c), lists = SHAPES[w], [f"xs{i}" for i in range(self.lists)]
        lines: list[str] = []
        values = [f"v{i}" for i in range(self.vectors)] + ["x"] * self.own

        def add(text: str) -> None:
            lines.append(f"    a{len(lines)} = {text}")
            values.append(f"a{len(lines) - 1}")

        if self.row:
            add(f"vpps.lookup(E0_{w}, row)")
        for xs in lists:
            add(f"vpps.sum({xs})")
        if not values:
            add(f"vpps.tanh(p0_{w})")
        known = PLAIN + LISTS if lists else PLAIN
        for which, i, j in self.ops:
            fields = {
                "a": values[i % len(values)], "b": values[j % len(values)], "w": w, "half": w // 2, "third": w // 3,
                "last": w - 1, "tall": (r, c), "flat": (c, r), "r": r, "X": lists[0] if lists else "",
                "Y": lists[-1] if lists else "", "W": f"W{i % 3}_{w}", "V": f"W{j % 3}_{w}",
                "Q": f"W{(i + 1) % 3}_{w}", "R": f"W{(i + 2) % 3}_{w}", "U": f"U0_{w}",
                "T": f"T{i % 2}_{w}", "L": f"L0_{w}", "B": f"B0_{w}", "p": f"p{j % 2}_{w}",
            }  # fmt: skip
            add(known[which % len(known)].format(**fields))
        results = [values[-1], *(values[-1 - k % len(values)] for k in self.results)]
        declared = "(elements={" + ", ".join(f'"{xs}": ({w},)' for xs in lists) + "})" if lists else ""
        head = [f"@vpps.cell{declared}", f"def {name}({', '.join(arguments)}):"]
        return [*head, *lines, f"    return {', '.join(results)}"]


PRODUCTS = tuple(k for k, text in enumerate(PLAIN) if "{W}" in text)


def draw(random: Random, widths: int = len(WIDTHS), *, ops: int = 9, results: int = 3, products: bool = False) -> Cell:
    """Return a random cell.

    Args:
        random: source of random numbers.
        widths: how many of `WIDTHS` to choose from.
        ops: maximum number of operations.
        results: upper limit (exclusive) of results besides the last value.
        products: True for only products, with a few vectors wide enough for the products to become one.
    """
    vectors, lists = random.choice((0, 1, 1, 2, 2, 3)), random.choice((0, 0, 1, 2))
    width, made = random.randrange(widths), draw_ops(random, ops)
    if products:
        width, vectors, lists = WIDTHS.index(32), max(vectors, 1), 0
        made = tuple(Op(PRODUCTS[op.which % len(PRODUCTS)], op.a % 6, op.b % 6) for op in made)
    outputs = tuple(random.randrange(100) for _ in range(random.randrange(results)))
    return Cell(width, vectors, lists, random.random() < 0.5, False, made, outputs)


def draw_ops(random: Random, most: int) -> tuple[Op, ...]:
    """Draw some random operations."""
    n = random.randint(1, most)
    return tuple(Op(random.randrange(200), random.randrange(100), random.randrange(100)) for _ in range(n))


_NAME = re.compile(r"\b([EWUTLBp])(\d)_(\d+)\b")


def declarations(lines: list[str]) -> list[str]:
    """Return lines that declare the parameters in these lines, in `model`."""
    found = sorted({m.groups() for line in lines for m in _NAME.finditer(line)})
    made = []
    for letter, number, width in found:
        w, name = int(width), f"{letter}{number}_{width}"
        r = SHAPES[w][0]
        shapes = {
            "E": (ROWS, w), "W": (w, w), "U": (3 * w, 2 * w), "T": (2 * w, w), "L": (r, r), "B": (3 * w,), "p": (w,),
        }  # fmt: skip
        call = "lookup" if letter == "E" else "parameter"
        init = ', init="normal"' if letter in "EBp" else ""
        frozen = ", trainable=False" if letter == "p" and w == 3 else ""
        made.append(f'{name} = model.{call}("{name}", {shapes[letter]}{init}{frozen})')
    return made
