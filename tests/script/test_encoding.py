"""Scripts survive the round trip through encoder and decoder, and the disassembly uses the user's names."""

from __future__ import annotations

import numpy as np
import pytest

import vpps
from vpps.compiler.lower_forward import MAX_SEGMENTS
from vpps.compiler.passes.fusion import MOST
from vpps.errors import ScriptError
from vpps.kernel.chip import SCRIPT_WORDS
from vpps.report.script_report import script_text
from vpps.script.disassemble import DecodedOperand, decode, entry_points, instructions
from vpps.script.encode import direct, encode, indexed, plain
from vpps.script.instructions import FORMS, HELD, TABLE, Flag, Instruction, Kind
from vpps.script.tails import ViewUse

pytestmark = pytest.mark.host

VIEWS_OF_ONE = 7  # most views of a tail instruction: four operands, a constant, the result before and after


@pytest.mark.parametrize("instruction", TABLE, ids=lambda i: i.name)
def test_every_instruction_survives_the_round_trip(instruction: object) -> None:
    assert isinstance(instruction, Instruction)
    fields: dict[str, object] = {}
    for k, f in enumerate(instruction.fields):
        if f.kind is Kind.OPERAND:
            fields[f.name] = direct(100 + k, 7 + k) if k % 2 else indexed(50 + k, k, scalar=True)
        elif f.kind is Kind.SEGMENTS:
            fields[f.name] = [(direct(9, 3), 3), (indexed(4, 1), 2)]
        elif f.kind is Kind.VIEWS:
            fields[f.name] = [(direct(9, 3), ViewUse.READ), ((40, 16), ViewUse.SUM), (direct(7, 5), ViewUse.WRITE)]
        else:
            fields[f.name] = 1.5 if f.kind is Kind.FLOAT else 1000 + k
    if "matrix" in fields and not instruction.on_chip:
        fields["matrix"] = 0
    words = encode(instruction.name.removeprefix(HELD), 12, 34, 2, Flag.ACCUMULATE | Flag.ROWS, **fields)
    d = decode(np.concatenate([plain([0, 0]), plain(words)]), 2)
    assert (d.instruction, d.n, d.width, d.parts) == (instruction, 12, 34, 2)
    assert d.flags == Flag.ACCUMULATE | Flag.ROWS
    assert d.words == len(words)
    for k, f in enumerate(instruction.fields):
        if f.kind is Kind.OPERAND:
            operand = d.fields[f.name]
            assert isinstance(operand, DecodedOperand)
            expected = (100 + k, 7 + k, False, False) if k % 2 else (50 + k, k, True, True)
            assert (operand.address, operand.stride, operand.indexed, operand.scalar) == expected
        elif f.kind is Kind.SEGMENTS:
            assert [w for _, w in d.fields[f.name]] == [3, 2]  # type: ignore[attr-defined]
        elif f.kind is Kind.VIEWS:
            views = [(x.address, x.mode, use) for x, use in d.fields[f.name]]  # type: ignore[attr-defined]
            assert views == [(9, 3, ViewUse.READ), (40, 16, ViewUse.SUM), (7, 5, ViewUse.WRITE)]
        else:
            assert d.fields[f.name] == fields[f.name]


def test_opcodes_are_the_positions_in_the_table() -> None:
    assert [i.opcode for i in TABLE] == list(range(len(TABLE)))
    assert len({i.name for i in TABLE}) == len(TABLE)
    assert {i.form for i in TABLE} == set(FORMS)


@pytest.mark.parametrize(
    "words, message",
    [([60000, 5, 0, 0, 0], "no opcode 60000"), ([0, 3, 0, 0, 0], "does not fit"), ([0, 90, 0, 0, 0], "does not fit")],
)
def test_what_is_no_instruction_is_refused(words: list[int], message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        decode(plain(words), 0)


def test_what_is_no_script_is_refused() -> None:
    with pytest.raises(ScriptError, match="not a script"):
        entry_points(plain([1, 2, 3, 4]))


@pytest.mark.cpu
def test_disassembly_names_cell_op_and_call() -> None:
    model = vpps.Model(seed=1)
    W = model.parameter("W", (64, 64))

    @vpps.cell
    def squash(x: vpps.Expression) -> vpps.Expression:
        return vpps.tanh(W @ x)

    graph = vpps.Graph()
    x = graph.input(np.ones(64))
    loss = vpps.sum(squash(squash(x)))
    with vpps.Handle(model, vps=2) as handle:
        text = handle.disassemble(graph, loss)
    assert "forward of cell 'squash', op '@' of 'W', from call 1" in text
    assert "backward of cell 'squash', op 'tanh', from call 2" in text
    assert "gradient of 'W' of cell 'squash'" in text
    assert "outer_update.sgd" in text
    assert "barrier 1, forward" in text


@pytest.mark.cpu
def test_virtual_processors_share_one_stream() -> None:
    model = vpps.Model(seed=1)
    p = model.parameter("p", (8,))
    graph = vpps.Graph()
    loss = vpps.dot(graph.input(np.ones(8)), p)
    with vpps.Handle(model, vps=3) as handle:
        handle.fb(graph, loss)
        plan = handle._engine.plan
        assert plan is not None
    entries = entry_points(plan.script)
    assert len(entries) == 3
    assert len(set(entries)) == 1
    names = [d.instruction.name for d in instructions(plan.script, entries[0])]
    assert names.count("barrier") == plan.n_barriers
    assert names[-1] == "end"
    assert script_text(plan).count("\n") == len(names) + 2


@pytest.mark.parametrize("instruction", TABLE, ids=lambda i: i.name)
def test_every_instruction_fits_into_what_a_gpu_holds_of_the_script(instruction: Instruction) -> None:
    repeated = {Kind.SEGMENTS: MAX_SEGMENTS, Kind.VIEWS: MOST * VIEWS_OF_ONE}
    words = [f.kind.words * repeated.get(f.kind, 0) for f in instruction.fields]
    assert instruction.fixed_words + sum(words) <= SCRIPT_WORDS
