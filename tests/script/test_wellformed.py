"""Differences between kernel and verifier, found by `scripts/fuzz scripts`: words that device code ignores or divides
by, compiled programs, matrices on the chip, colliding threads of one virtual processor."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

import vpps
from tests.fuzz.breaking import places
from tests.script import test_verify
from tests.simt import models
from vpps.errors import ScriptError
from vpps.placement.update import Update
from vpps.planner.plan import Plan
from vpps.script.disassemble import Decoded, DecodedOperand, Words, entry_points, instructions
from vpps.script.instructions import BY_NAME, HEADER_WORDS, INDEXED, Flag
from vpps.script.tails import ViewUse
from vpps.script.verify import verify

pytestmark = pytest.mark.host


@cache
def plan(kind: str) -> Plan:
    """Return the plan for a training step. The plans "fused", "plain" and "in turns" are for an emulated GPU, without
    compiling."""
    if kind == "tree":
        return test_verify.make_plan(2, precision="bf16")
    if kind == "lists":
        return test_verify.make_plan_of_lists(2, 64)
    network = models.attention(lengths=(0, 2, 5)) if kind == "plain" else models.tree_lstm(leaves=(2, 1))
    optimizer, passes = vpps.Adam(), vpps.Passes(fusion=kind != "plain")
    onchip = vpps.ChipOptions("round-robin", rpw=1) if kind == "in turns" else vpps.ChipOptions(groups=1)
    handle = vpps.Handle(
        network.model, optimizer, target="simt", vps=2, passes=passes, schedule="vector", onchip=onchip
    )
    graph, loss = network.batch(0)
    made = handle._engine.prepare(graph, optimizer, trains=True).plan_training(
        graph, loss, Update(optimizer, 1, 1, 0.1), 0
    )
    verify(made.script, made.layout, made.origin)
    return made


def listing(script: Words) -> list[Decoded]:
    return list(instructions(script, entry_points(script)[0]))


def find(script: Words, name: str, suits: Callable[[Decoded], bool] = lambda d: True) -> Decoded:
    return next(d for d in listing(script) if d.instruction.name == name and suits(d))


def place(d: Decoded, name: str) -> int:
    """Return the position of a field."""
    return next(at for field, _, at in places(d) if field.partition("[")[0] == name)


Damage = Callable[[Words], None]


def field(of: str, name: str, value: int | Callable[[int], int], word: int = 0) -> Damage:
    """Return damage that sets a field to a value, or to a value computed from the right one."""

    def damage(script: Words) -> None:
        at = place(find(script, of), name) + word
        script[at] = value if isinstance(value, int) else value(int(script[at]))

    return damage


def word(at: int | Callable[[Words], int], value: int | Callable[[Words], int]) -> Damage:
    """Return damage that sets a word of the script."""

    def damage(script: Words) -> None:
        position, new = (x if isinstance(x, int) else x(script) for x in (at, value))
        script[position] = new

    return damage


def reads_what_it_writes(of: str) -> Damage:
    def damage(script: Words) -> None:
        a, dst = (place(find(script, of), name) for name in ("a", "dst"))
        script[a : a + 2] = script[dst : dst + 2]

    return damage


def elements(script: Words) -> int:
    """Return the offset of the list that holds the list ends."""
    return int(script[place(find(script, "list_log_softmax"), "elements")])


def list_beyond_the_script(script: Words) -> None:
    at = place(find(script, "copy"), "a")
    script[at : at + 2] = len(script) - 2, INDEXED


def head(of: str, word: int, value: int) -> Damage:
    def damage(script: Words) -> None:
        script[find(script, of).position + word] = value

    return damage


def flipped(of: str, flag: int) -> Damage:
    def damage(script: Words) -> None:
        script[find(script, of).position] ^= flag << 16

    return damage


def view(use: ViewUse, word: int, change: Callable[[int], int]) -> Damage:
    """Return damage to the first view that the first tail uses in some way."""

    def damage(script: Words) -> None:
        d = find(script, "tail")
        views = d.fields["views"]
        assert isinstance(views, list)
        at = place(d, "views") + 3 * next(k for k, (_, u) in enumerate(views) if u == use) + word
        script[at] = change(int(script[at]))

    return damage


def loaded_twice(script: Words) -> None:
    first, second = listing(script)[:2]
    script[second.position : second.position + second.words] = script[first.position : first.position + first.words]


def loaded_by_one_alone(script: Words) -> None:
    script[HEADER_WORDS + 1] = next(d for d in listing(script) if d.instruction.form != "Load").position


def loaded_late(script: Words) -> None:
    last = [d for d in listing(script) if d.instruction.form == "Load"][-1]
    start, middle = last.position, last.position + last.words
    end = middle + int(script[middle + 1])
    script[start:end] = np.roll(script[start:end].copy(), end - middle)


def list_that_goes_back(script: Words) -> None:
    d = find(script, "gather_sum", lambda d: d.n > 2)
    offsets = d.fields["offsets"]
    assert isinstance(offsets, int)
    script[offsets + 1] = script[offsets + d.n] + 1


def rows_on_one_another(script: Words) -> None:
    d = find(script, "tanh", lambda d: d.n > 1)
    script[place(d, "dst") + 1] = 0


def rows_that_others_write(script: Words) -> None:
    """Make every row read memory that the previous row is about to write."""
    d = find(script, "tanh", lambda d: d.n > 1)
    a = d.fields["a"]
    assert isinstance(a, DecodedOperand)
    script[d.position + 2] = d.n - 1
    script[place(d, "dst") : place(d, "dst") + 2] = a.address + a.stride, a.stride


def product_behind_gradients(script: Words) -> None:
    product, tiles = find(script, "held_matvec"), find(script, "outer_tiles")
    end = tiles.position + tiles.words
    script[end : end + product.words] = script[product.position : product.position + product.words]


DAMAGES: dict[str, tuple[str, Damage, str]] = {
    "an address beyond the pool": ("tree", field("tanh", "dst", 2**24), "not a row of one array of the pool"),
    "a source that nothing wrote": ("tree", reads_what_it_writes("tanh"), r"reads element \d+, which nothing has writ"),
    "a list beyond the script": ("tree", list_beyond_the_script, "not part of one list of the script"),
    "no instruction": ("tree", word(lambda s: entry_points(s)[0], 0xFFFF), "no opcode"),
    "another number of virtual processors": ("tree", word(1, 1), "for 1 virtual processor, not 2"),
    "an entry outside": ("tree", word(HEADER_WORDS, lambda s: len(s) + 5), "outside the script"),
    "a list that ends before it begins": (
        "lists",
        word(lambda s: elements(s) + 1, lambda s: int(s[elements(s) + 2]) + 1),
        "list_log_softmax .*a list ends before it begins",
    ),
    "elements beyond the cell": (
        "lists",
        word(lambda s: elements(s) + find(s, "list_log_softmax").n, 1 << 24),
        r"list_log_softmax .*lists of \d+ rows are longer than possible",
    ),
    "results where nothing is expected": (
        "lists",
        reads_what_it_writes("list_log_softmax"),
        r"list_log_softmax .*reads element \d+, which nothing has written",
    ),
    "matrices that do not fit": ("lists", field("matmul", "inner", lambda n: n + 1), "matmul .*inner dimension 4 do"),
    "rows that do not fit": ("lists", field("transpose", "columns", 7), "transpose .*floats are not whole rows of 7"),
    "weights beyond the pool": ("lists", field("packed_matmul", "weights", 2**24), "packed_matmul .*touches element"),
    "a segment that is too wide": (
        "lists",
        field("packed_matmul_gradient", "x", lambda n: n + 10_000, 2),
        "packed_matmul_gradient .*segments of .* do not make 192",
    ),
    "an instruction that the kernel lacks": (
        "plain",
        head("tanh", 0, BY_NAME["exp"].opcode),
        "the kernel has no code for it",
    ),
    "a flag that device code ignores": ("fused", flipped("held_matvec", Flag.ROWS), "ROWS.* are not allowed"),
    "turns of what is in memory": ("plain", flipped("tanh", Flag.TURNS), "TURNS.* are not allowed"),
    "a chain that begins with no product": ("plain", flipped("tanh", Flag.CHAINED), "CHAINED.* are not allowed"),
    "turns of a gradient": ("fused", flipped("outer_tiles", Flag.TURNS), "TURNS.* are not allowed"),
    "rows that are not dealt in turns": ("in turns", flipped("held_matvec", Flag.TURNS), "is held as|equal parts"),
    "a turn of nobody": ("fused", field("outer_tiles", "turn", 2), "turn 2 is not one of 2 virtual processors"),
    "tiles at any float": ("fused", field("outer_tiles", "partials", lambda at: at + 1), "multiples of 4"),
    "tiles at any float, added up": ("fused", field("sum_tiles", "partials", lambda at: at + 2), "multiples of 4"),
    "a product behind gradients": ("fused", product_behind_gradients, "has not been loaded"),
    "rows in parts of units": ("plain", flipped("dot", Flag.ROWS), "they must be divided by rows"),
    "no parts": ("plain", head("tanh", 4, 0), "33 units are not 0 equal parts"),
    "no parts on the chip": ("fused", head("held_matvec", 4, 0), "equal parts|is held as"),
    "rows without end": ("plain", head("tanh", 2, 2**32 - 1), "more rows or floats than possible"),
    "a row without end": ("plain", field("dot", "row_width", 2**31 + 33), "more rows or floats than possible"),
    "another matrix": ("fused", field("held_matvec", "matrix", 5), "matrix 5 is held as"),
    "no matrix": ("fused", field("held_matvec", "matrix", 99), "the chip holds no matrix 99"),
    "a matrix on the chip twice": ("fused", loaded_twice, "is on the chip already"),
    "a matrix that is not there": ("fused", loaded_by_one_alone, "has not been loaded"),
    "a load too late": ("fused", loaded_late, "loads are executed at the beginning only"),
    "no columns": ("fused", field("outer_tiles", "columns", 0), "0 columns"),
    "segments that are no row": ("fused", field("outer_tiles", "x", 21, 2), "segments of .* do not make"),
    "another program": ("fused", field("tail", "number", 7), "the kernel has no program 0x7"),
    "a view that is said to be read": ("fused", view(ViewUse.WRITE, 2, lambda use: 0), "its program uses view"),
    "a list that nobody looks at": ("fused", view(ViewUse.WRITE, 1, lambda m: m | INDEXED), "its program uses view"),
    "a counter that is none": ("fused", field("barrier", "counter", 8), "there is no counter 8"),
    "a loss where nobody looks": ("fused", field("loss", "slot", 400), "reads no loss at 400"),
    "rates beyond the script": ("fused", field("update_vector.adam", "hyper", 10**6), "not part of one list"),
    "a list that goes back": ("plain", list_that_goes_back, "a list ends before it begins"),
    "a narrower result": ("plain", field("dot.grad0", "row_width", 9), "it makes 9 floats from a row of 9"),
    "rows on one another": ("plain", rows_on_one_another, r"writes element \d+ twice"),
    "rows that others write": ("plain", rows_that_others_write, r"reads element \d+, another thread writes it"),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_damage_is_refused(what: str) -> None:
    kind, damage, message = DAMAGES[what]
    made = plan(kind)
    assert len(made.layout.lists)  # as planned: damaged streams cannot be explained
    script = made.script.copy()
    damage(script)
    with pytest.raises(ScriptError, match=message):
        verify(script, made.layout, made.origin)
