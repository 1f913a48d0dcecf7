"""Ways to break a verified script: change words; remove or move instructions; give them to other virtual processors."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from tests.fuzz.subjects import Subject
from vpps.errors import ScriptError
from vpps.script.disassemble import Decoded, Words, instructions, line_of
from vpps.script.footprint import MemoryMap
from vpps.script.instructions import HEAD_WORDS, HEADER_WORDS, INDEXED, OFFSET_MASK, SCALAR, TABLE, Flag, Kind
from vpps.script.tails import ViewUse

WORD = 1 << 32


@dataclass(frozen=True, slots=True)
class Piece:
    """An instruction in a stream, with its original period."""

    words: Words
    period: int


class BrokenScript:
    """A script that is being broken.

    Attributes:
        told: a line for each change.
    """

    def __init__(self, subject: Subject, rng: random.Random) -> None:
        self.rng = rng
        self.script: Words = subject.script.copy()
        self.layout: MemoryMap = subject.layout
        self.told: list[str] = []
        self.slots = range(HEADER_WORDS, HEADER_WORDS + subject.layout.n_vps)  # positions of the entry points
        self._origin: dict[int, int] = {}
        self._subject = subject

    def origin(self, position: int) -> str:
        """Return a position's description for users."""
        return self._subject.origin(self._origin.get(position, position))

    # ---- places

    def choose_slots(self) -> list[int]:
        """Choose the entry point of one virtual processor, or of all virtual processors that share its stream."""
        slot = self.rng.choice(self.slots)
        if self.rng.random() < 0.5:
            return [slot]
        return [s for s in self.slots if self.script[s] == self.script[slot]]

    def stream(self, slot: int) -> list[Decoded]:
        """Return the instructions from an entry point on."""
        return list(instructions(self.script, int(self.script[slot])))

    def pieces(self, slot: int) -> list[Piece]:
        """Return the stream as pieces, to be reassembled."""
        positions, numbers = self.layout.periods.T
        found = []
        for d in self.stream(slot):
            i = int(np.searchsorted(positions, d.position, side="right")) - 1
            words = self.script[d.position : d.position + d.words].copy()
            found.append(Piece(words, int(numbers[i]) if i >= 0 else -1))
        return found

    def enter(self, slots: list[int], pieces: list[Piece], of: list[int]) -> None:
        """Let virtual processors begin at a stream that is appended to the script.

        Args:
            of: original positions of the stream's instructions.
        """
        start = len(self.script)
        ends = start + np.cumsum([len(p.words) for p in pieces])
        begins = [start, *ends[:-1].tolist()]
        self.script = np.concatenate([self.script, *(p.words for p in pieces)])
        self.script[3] = len(self.script)
        self.script[slots] = start
        periods = np.array([(at, p.period) for at, p in zip(begins, pieces, strict=True)], np.int64)
        self.layout = replace(self.layout, periods=np.concatenate([self.layout.periods, periods]))
        self._origin.update((at, self._origin.get(o, o)) for at, o in zip(begins, of, strict=True))

    def instruction(self, suits: Callable[[Decoded], bool] = lambda d: True) -> Decoded | None:
        """Choose an instruction to change: for all processors that share its stream, or for one in a new stream."""
        slots = self.choose_slots()
        found = [i for i, d in enumerate(self.stream(slots[0])) if suits(d)]
        if not found:
            return None
        if len(slots) == 1 and (self.script[self.slots] == self.script[slots[0]]).sum() > 1:
            self.enter(slots, self.pieces(slots[0]), [d.position for d in self.stream(slots[0])])
            self.told.append(f"for VP {self.vp_of(slots[0])} alone")
        return self.stream(slots[0])[self.rng.choice(found)]

    def vp_of(self, slot: int) -> int:
        return self.slots.index(slot)

    def put(self, position: int, value: int) -> None:
        """Set a word of the script."""
        self.script[position] = value % WORD

    def tell(self, d: Decoded, what: str) -> None:
        self.told.append(f"{what} in: {line_of(d, self.origin(d.position)).strip()}")


# ---- places in an instruction


def places(d: Decoded) -> Iterator[tuple[str, Kind, int]]:
    """Yield (name, kind, position) for each field of an instruction; segments and views one by one."""
    at = d.position + HEAD_WORDS
    for f in d.instruction.fields:
        value = d.fields[f.name]
        for k in range(len(value) if isinstance(value, list) else 1):
            yield f"{f.name}[{k}]" if isinstance(value, list) else f.name, f.kind, at
            at += f.kind.words


def near(rng: random.Random, value: int, steps: tuple[int, ...]) -> int:
    return value + rng.choice((-1, 1)) * rng.choice((1, *steps))


OPERANDS = (Kind.OPERAND, Kind.SEGMENTS, Kind.VIEWS)


Mutation = Callable[["BrokenScript"], bool]
"""Breaks a script; returns False if this change does not apply."""


def of_instruction(suits: Callable[[Decoded], bool] = lambda d: True) -> Callable[[Callable[..., None]], Mutation]:
    """Return a decorator for mutations of suitable instructions."""

    def mutation(change: Callable[[BrokenScript, Decoded], None]) -> Mutation:
        def mutate(b: BrokenScript) -> bool:
            if d := b.instruction(suits):
                change(b, d)
            return d is not None

        return mutate

    return mutation


def of_place(*kinds: Kind) -> Callable[[Callable[..., None]], Mutation]:
    """Return a decorator for mutations of fields of these kinds: `change(b, d, name, at)`."""

    def mutation(change: Callable[[BrokenScript, Decoded, str, int], None]) -> Mutation:
        @of_instruction(lambda d: any(kind in kinds for _, kind, _ in places(d)))
        def mutate(b: BrokenScript, d: Decoded) -> None:
            name, _, at = b.rng.choice([p for p in places(d) if p[1] in kinds])
            change(b, d, name, at)

        return mutate

    return mutation


@of_place(*OPERANDS)
def address(b: BrokenScript, d: Decoded, name: str, at: int) -> None:
    """Move an operand, a segment or a view."""
    value, mode = int(b.script[at]), int(b.script[at + 1])
    match b.rng.randrange(4):
        case 0:
            new = near(b.rng, value, (d.width or 1, (mode & OFFSET_MASK) or 1, 16))
        case 1:  # to the place of another operand
            others = [o for e in b.stream(b.slots[0]) for _, k, o in places(e) if k in OPERANDS]
            new = int(b.script[b.rng.choice(others)])
        case 2:
            new = b.rng.randrange(b.layout.pool_floats)
        case _:
            new = b.rng.choice((0, b.layout.pool_floats - b.rng.randrange(40), b.rng.randrange(WORD)))
    b.put(at, new)
    b.tell(d, f"address {value} of {name} became {new}")


@of_place(*OPERANDS)
def mode(b: BrokenScript, d: Decoded, name: str, at: int) -> None:
    """Change a stride, an offset, or a bit of an operand's mode."""
    old = int(b.script[at + 1])
    new = b.rng.choice((
        old ^ INDEXED,
        old ^ SCALAR,
        old & ~OFFSET_MASK,
        near(b.rng, old, (d.width or 1, 16)),
        old * 2,
        (old & ~OFFSET_MASK) | b.rng.randrange(200),
    ))  # fmt: skip
    b.put(at + 1, new)
    b.tell(d, f"mode {old:#x} of {name} became {new % WORD:#x}")


def list_entry(b: BrokenScript) -> bool:
    """Change a word in an index list, or in data."""
    start, stop = b.rng.choice(b.layout.lists.tolist())
    if start == stop:
        return False
    at = b.rng.randrange(start, stop)
    old = int(b.script[at])
    match b.rng.randrange(4):
        case 0:
            new = near(b.rng, old, (16, 20, 64))
        case 1:
            new = int(b.script[b.rng.randrange(start, stop)])
        case 2:
            other = b.rng.randrange(start, stop)
            new = int(b.script[other])
            b.put(other, old)
        case _:
            new = b.rng.choice((0, b.rng.randrange(b.layout.pool_floats), b.rng.randrange(len(b.script)), WORD - 1))
    b.put(at, new)
    b.told.append(f"entry {at} of the list of words {start} to {stop} was {old}, became {new % WORD}")
    return True


@of_instruction(lambda d: d.width > 0)
def count(b: BrokenScript, d: Decoded) -> None:
    """Change rows, width or parts."""
    k = b.rng.choice((2, 2, 3, 3, 4))
    old = int(b.script[d.position + k])
    new = b.rng.choice((near(b.rng, old, (2, 8)), 0, old * 2, old // 2, b.rng.randrange(300), b.rng.randrange(WORD)))
    b.put(d.position + k, new)
    b.tell(d, f"{('n', 'width', 'parts')[k - 2]} {old} became {new % WORD}")


@of_instruction()
def flag(b: BrokenScript, d: Decoded) -> None:
    """Change owners, or the addition to a result."""
    bit = b.rng.choice((*Flag, Flag.ROWS, Flag.ALONE, Flag.TURNS, 1 << b.rng.randrange(16)))
    b.put(d.position, int(b.script[d.position]) ^ int(bit) << 16)
    b.tell(d, f"flag {bit!r} flipped")


@of_instruction()
def opcode(b: BrokenScript, d: Decoded) -> None:
    """Use a different opcode, often one of the same form."""
    alike = [i for i in TABLE if i.form == d.instruction.form and i is not d.instruction]
    used = [e.instruction for e in b.stream(b.slots[0])]
    new = b.rng.choice(b.rng.choice([x for x in (alike, used, list(TABLE)) if x]))
    b.put(d.position, d.bits << 16 | new.opcode)
    b.tell(d, f"became {new.name}")


@of_place(Kind.LIST, Kind.WORD, Kind.FLOAT)
def field(b: BrokenScript, d: Decoded, name: str, at: int) -> None:
    """Change a word that is not an operand: an address, a list, or the number of columns, a matrix or a tail."""
    old = int(b.script[at])
    match b.rng.randrange(4):
        case 0:
            new = near(b.rng, old, (2, 16, d.width or 1))
        case 1:  # another instruction's word
            same = [o for e in b.stream(b.slots[0]) for m, _, o in places(e) if m == name]
            new = int(b.script[b.rng.choice(same or [at])])
        case 2:
            new = b.rng.choice((0, old * 2, b.rng.choice(b.layout.lists.tolist() or [[0, 0]])[0]))
        case _:
            new = b.rng.choice((b.rng.randrange(b.layout.pool_floats), b.rng.randrange(WORD), len(b.script) - 1))
    b.put(at, new)
    b.tell(d, f"{name} {old} became {new % WORD}")


def repeated(b: BrokenScript) -> bool:
    """Change segments and views: change a width or an action, exchange two, add or remove one."""
    d = b.instruction(lambda d: any(f.kind.repeated for f in d.instruction.fields))
    if d is None:
        return False
    found = [p for p in places(d) if p[1].repeated]
    if not found:
        return False
    name, kind, at = b.rng.choice(found)
    old = int(b.script[at + 2])
    match b.rng.randrange(4):
        case 0 | 1:
            new = b.rng.randrange(len(ViewUse)) if kind is Kind.VIEWS else near(b.rng, old, (4, 16))
            b.put(at + 2, new)
            b.tell(d, f"{name}: {old} became {new}")
        case 2:
            other, _, to = b.rng.choice(found)
            b.script[at : at + 3], b.script[to : to + 3] = b.script[to : to + 3].copy(), b.script[at : at + 3].copy()
            b.tell(d, f"{name} and {other} exchanged")
        case _:
            b.put(d.position + 1, d.words + b.rng.choice((-6, -3, 3, 6)))
            b.tell(d, f"{d.words} words became {b.script[d.position + 1]}")
    return True


@of_instruction()
def length(b: BrokenScript, d: Decoded) -> None:
    """Change an instruction's number of words."""
    b.put(d.position + 1, b.rng.choice((near(b.rng, d.words, (2, 3)), 0, b.rng.randrange(4000), b.rng.randrange(WORD))))
    b.tell(d, f"{d.words} words became {b.script[d.position + 1]}")


@of_instruction()
def bit(b: BrokenScript, d: Decoded) -> None:
    """Flip any bit of any executed word."""
    at = d.position + b.rng.randrange(d.words)
    which = b.rng.randrange(32)
    b.put(at, int(b.script[at]) ^ 1 << which)
    b.tell(d, f"bit {which} of word {at - d.position} flipped")


def header(b: BrokenScript) -> bool:
    """Change the script's first words, or a virtual processor's entry point."""
    slots = b.slots
    if b.rng.random() < 0.2:
        at, new = b.rng.randrange(HEADER_WORDS), b.rng.randrange(20)
    else:
        at = b.rng.choice(slots)
        inside = b.rng.choice(b.stream(b.rng.choice(slots))).position
        new = b.rng.choice((int(b.script[b.rng.choice(slots)]), inside, inside, b.rng.randrange(len(b.script) + 10)))
    b.told.append(f"word {at} of the header was {b.script[at]}, became {new}")
    b.put(at, new)
    return True


def swapped_owners(b: BrokenScript) -> bool:
    """Exchange the streams of two virtual processors."""
    slots = b.slots
    if len(slots) < 2:
        return False
    p, q = b.rng.sample(slots, 2)
    if b.script[p] == b.script[q]:
        return False
    b.script[p], b.script[q] = b.script[q], b.script[p]
    b.told.append(f"VP {b.vp_of(p)} and VP {b.vp_of(q)} have each other's streams")
    return True


# ---- waits


def _is(*names: str) -> Callable[[Decoded], bool]:
    return lambda d: d.instruction.name in names


@of_instruction(_is("barrier", "wait", "signal"))
def wait_target(b: BrokenScript, d: Decoded) -> None:
    """Change a wait's number of signals, or the counter of a signal or a wait."""
    if d.instruction.name == "signal" or b.rng.random() < 0.2:
        k, new = 0, b.rng.choice((0, 1, 2, 3, 7, 8, 9, b.rng.randrange(100), b.rng.randrange(WORD)))
    else:
        target = int(b.script[d.position + HEAD_WORDS + 1])
        near_by = (target + b.rng.choice((-b.layout.n_vps, b.layout.n_vps, -1, 1)), near(b.rng, target, (2,)))
        k, new = 1, b.rng.choice((*near_by, 0, 1, 2 * target, b.rng.randrange(WORD)))
    b.put(d.position + HEAD_WORDS + k, new)
    b.tell(d, f"{('counter', 'target')[k]} became {new % WORD}")


def half_barrier(b: BrokenScript) -> bool:
    """Keep only the signal or only the wait of a barrier; or exchange a signal and a wait."""
    slots = b.choose_slots()
    stream, pieces = b.stream(slots[0]), b.pieces(slots[0])
    found = [i for i, d in enumerate(stream) if d.instruction.name in ("barrier", "wait", "signal")]
    if not found:
        return False
    i = b.rng.choice(found)
    counter = stream[i].fields["counter"]
    assert isinstance(counter, int)
    by_name = {d.name: d.opcode for d in TABLE}
    name = b.rng.choice([n for n in ("barrier", "wait", "signal") if n != stream[i].instruction.name])
    target = stream[i].fields.get("target", b.layout.n_vps)
    body = [counter] if name == "signal" else [counter, target]
    words = np.array([by_name[name], HEAD_WORDS + len(body), 0, 0, 0, *body], np.uint32)
    b.tell(stream[i], f"became {name} for VPs {[b.vp_of(s) for s in slots]}")
    pieces[i] = replace(pieces[i], words=words)
    b.enter(slots, pieces, [d.position for d in stream])
    return True


# ---- whole instructions


def _edited(
    b: BrokenScript, suits: Callable[[Decoded], bool], edit: Callable[[list[int], int], tuple[list[int], str] | None]
) -> bool:
    """Reorder a stream: `edit(indices, i)` gives the new order around the chosen instruction i."""
    slots = b.choose_slots()
    stream, pieces = b.stream(slots[0]), b.pieces(slots[0])
    found = [i for i, d in enumerate(stream) if suits(d)]
    if not found:
        return False
    i = b.rng.choice(found)
    edited = edit(list(range(len(stream))), i)
    if edited is None:
        return False
    order, what = edited
    b.tell(stream[i], f"{what}, for VPs {[b.vp_of(s) for s in slots]},")
    b.enter(slots, [pieces[k] for k in order], [stream[k].position for k in order])
    return True


def drop(b: BrokenScript, suits: Callable[[Decoded], bool] = lambda d: True) -> bool:
    """Remove an instruction from a stream."""
    return _edited(b, suits, lambda order, i: (order[:i] + order[i + 1 :], "dropped"))


def double(b: BrokenScript) -> bool:
    """Repeat an instruction once."""
    return _edited(b, lambda d: True, lambda order, i: (order[: i + 1] + order[i:], "doubled"))


def exchange(b: BrokenScript) -> bool:
    """Exchange the places of two instructions."""

    def edit(order: list[int], i: int) -> tuple[list[int], str] | None:
        j = i + 1 if b.rng.random() < 0.5 else b.rng.randrange(len(order))
        if j >= len(order) or i == j:
            return None
        order[i], order[j] = order[j], order[i]
        return order, f"exchanged with the one {j - i} behind"

    return _edited(b, lambda d: True, edit)


def move(b: BrokenScript, suits: Callable[[Decoded], bool] = lambda d: True) -> bool:
    """Move an instruction earlier or later."""

    def edit(order: list[int], i: int) -> tuple[list[int], str]:
        to = b.rng.randrange(len(order)) if b.rng.random() < 0.3 else i + b.rng.choice((-3, -2, -1, 1, 2, 3))
        order.pop(i)
        order.insert(max(0, to), i)
        return order, f"moved by {to - i}"

    return _edited(b, suits, edit)


def give(b: BrokenScript) -> bool:
    """Move or copy an instruction to another virtual processor."""
    slots = b.slots
    if len(slots) < 2:
        return False
    p, q = b.rng.sample(slots, 2)
    stream, mine, theirs = b.stream(p), b.pieces(p), b.pieces(q)
    their_stream = b.stream(q)
    i = b.rng.randrange(len(mine))
    to = min(i, len(theirs)) if b.rng.random() < 0.5 else b.rng.randrange(len(theirs))
    keeps = b.rng.random() < 0.5
    what = "copied" if keeps else "moved"
    b.tell(stream[i], f"{what} from VP {b.vp_of(p)} to VP {b.vp_of(q)}, place {to},")
    b.enter(
        [q],
        [*theirs[:to], mine[i], *theirs[to:]],
        [d.position for d in (*their_stream[:to], stream[i], *their_stream[to:])],
    )
    if not keeps:
        b.enter([p], mine[:i] + mine[i + 1 :], [d.position for d in stream[:i] + stream[i + 1 :]])
    return True


MUTATIONS: dict[str, Mutation] = {
    "address": address, "mode": mode, "list entry": list_entry, "count": count, "flag": flag, "opcode": opcode,
    "field": field, "segment or view": repeated, "length": length, "bit": bit, "header or entry": header,
    "owners swapped": swapped_owners, "wait or signal changed": wait_target, "barrier halved": half_barrier,
    "wait or signal dropped": lambda b: drop(b, _is("barrier", "wait", "signal")),
    "wait or signal moved": lambda b: move(b, _is("barrier", "wait", "signal")), "dropped": drop, "doubled": double,
    "exchanged": exchange, "moved": move, "another's": give,
}  # fmt: skip
TWICE = "two at once"


def broken(subject: Subject, seed: int, number: int) -> tuple[str, BrokenScript]:
    """Return (mutation, script) for a number; they depend only on the arguments."""
    rng = random.Random(f"{subject.name}/{seed}/{number}")
    for _ in range(100):
        name = rng.choice([*MUTATIONS, TWICE])
        names = rng.choices(list(MUTATIONS), k=2) if name == TWICE else [name]
        b = BrokenScript(subject, rng)
        try:
            if all(MUTATIONS[n](b) for n in names) and not _same(b, subject):
                return name, b
        except ScriptError:  # a second change to an already invalid script
            continue
    raise AssertionError(f"nothing breaks {subject.name}")


def _same(b: BrokenScript, subject: Subject) -> bool:
    """Return True if nothing has changed: all virtual processors execute the same words with the same lists."""
    n = len(subject.script)
    if not np.array_equal(
        b.script[HEADER_WORDS + subject.layout.n_vps : n], subject.script[HEADER_WORDS + subject.layout.n_vps :]
    ):
        return False
    if not np.array_equal(b.script[[0, 1, 2]], subject.script[[0, 1, 2]]):
        return False
    try:
        for slot in b.slots:
            before = [
                w
                for d in instructions(subject.script, int(subject.script[slot]))
                for w in subject.script[d.position : d.position + d.words]
            ]
            after = [w for d in b.stream(slot) for w in b.script[d.position : d.position + d.words]]
            if before != after:
                return False
    except ScriptError:
        return False
    return True
