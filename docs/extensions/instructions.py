"""The instruction reference, of the table in vpps/script/instructions.py."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from tables import code, escaped, table

from vpps.script.instructions import FORMS, HEAD_WORDS, TABLE, Field, Flag, Instruction, Kind, Role, Slices

DIVISION = {Slices.UNITS: "units or rows", Slices.TILES: "tiles", Slices.ONE: "one"}

ROLES = {
    Role.WRITE: "written: its own slice",
    Role.READ: "read: its own slice",
    Role.ADD: "added to, whole rows, atomically",
    Role.READ_ROWS: "read: whole rows",
    Role.NONE: "",
}

KINDS = {
    Kind.OPERAND: "operand",
    Kind.LIST: "list",
    Kind.WORD: "word",
    Kind.FLOAT: "float",
    Kind.SEGMENTS: "segments",
    Kind.VIEWS: "views",
}

FLAGS = {
    Flag.ACCUMULATE: "the result is added to what is there",
    Flag.ROWS: "slices are rows rather than units",
    Flag.MEAN: "`gather_sum` divides by the number of entries",
    Flag.NO_GRADIENT: "the parameter was not used: its gradient is zero",
    Flag.ALONE: "one virtual processor computes all of the result",
    Flag.OWNED: "the matrix is held on the chip: its rows are dealt like the units of a product",
    Flag.TURNS: "the rows of a matrix are dealt in turns, as in the published VPPS scheme",
    Flag.ALL: "divided among the virtual processors of all groups",
    Flag.BF16: "the fields that are rounded, are to bf16",
    Flag.TF32: "the fields that are rounded, are to tf32",
    Flag.PAIRS: "weights for products lie in memory as pairs of bf16, of columns side by side; a step writes them, too",
    Flag.CHAINED: "a product whose result stays on the chip: the tail that follows takes it, and is executed with it",
}


def by_form() -> Iterator[tuple[str, list[Instruction]]]:
    """Forms in the order of their first opcode, and the instructions of each."""
    place = {form: at for at, form in reversed(list(enumerate(i.form for i in TABLE)))}
    ordered = sorted(TABLE, key=lambda i: (place[i.form], i.opcode))
    for form, members in groupby(ordered, key=lambda i: i.form):
        yield form, list(members)


def words_of(instruction: Instruction) -> str:
    """Words of an instruction in the script, as a formula."""
    repeated = "".join(f" + {f.kind.words} per {f.name}" for f in instruction.fields if f.kind.repeated)
    return f"{instruction.fixed_words}{repeated}"


def markdown() -> str:
    return "".join(_parts())


def _parts() -> Iterator[str]:
    yield "## Flags\n\n"
    yield "Bits 16 and up of the first word; in disassembly they follow the name, as in `matvec.rows`.\n\n"
    yield table(
        ("bit", "flag", "meaning"),
        ((str(15 + flag.bit_length()), code((flag.name or "").lower()), FLAGS[flag]) for flag in Flag),
    )
    yield "## Forms\n\n"
    yield f"There are {len(TABLE)} instructions of {len({i.form for i in TABLE})} forms.\n\n"
    for form, members in by_form():
        yield f"### {form}\n\n"
        chip = " Only where weights are held on the chip (`cuda`, `simt`)." if members[0].on_chip else ""
        fields = ", then the fields" if FORMS[form] else ", no fields"
        yield f"{words_of(members[0])} words: a head of {HEAD_WORDS}{fields}.{chip}\n\n"
        if FORMS[form]:
            yield table(("field", "kind", "words", "by a virtual processor"), map(_field, FORMS[form]))
        yield table(
            ("opcode", "instruction", "meaning", "divided by"),
            ((str(i.opcode), code(i.name), escaped(i.doc), DIVISION[i.slices]) for i in members),
        )


def _field(field: Field) -> tuple[str, str, str, str]:
    words = f"{field.kind.words} each" if field.kind.repeated else str(field.kind.words)
    width = f", as wide as `{field.width}` says" if field.width else ""
    rows = ", rows of list elements" if field.elements else ""
    role = ROLES[field.role] + width + rows
    return code(field.name), KINDS[field.kind], words, "; ".join(filter(None, (role, "rounded" * field.rounded)))
