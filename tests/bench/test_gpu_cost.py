"""Machine code executed without a GPU: whole launches to their results, and the counts that follow."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import numpy as np
import pytest

import vpps
from tests.kernel.programs import tree_lstm
from tests.nvrtc import needs_nvrtc
from vpps.engine.options import Example
from vpps.placement.distribution import ONE
from vpps.script.disassemble import entry_points, instructions
from vpps.script.instructions import COUNTERS

BLOCKS, HIDDEN = 2, 8
Program = tuple[vpps.Model, Example, Any]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """A model, a batch, and its `gpu_cost.cases.Case`."""
    from gpu_cost.cases import planned

    model, example = tree_lstm(HIDDEN, embedding=HIDDEN)
    return model, example, planned("small", 3, model, example, tmp_path_factory.mktemp("gpu_cost"), BLOCKS)


@pytest.mark.nvrtc
@needs_nvrtc
def test_a_training_step_in_machine_code_gives_the_weights_of_the_cpu(program: Program) -> None:
    """All blocks, from the loads to the update: no matrix in registers may be overwritten, no instruction misread."""
    from gpu_cost.cases import LINE_WORDS, memory_of
    from gpu_cost.machine import BASE, Machine

    model, example, case = program
    plan, parameters = case.plan, case.kernel.parameters
    memory, parameter = memory_of(plan)
    addresses = (parameter.view(np.uint64)[:3].astype(np.int64) - BASE) // 4
    pool, counters = memory[addresses[0] :].view(np.float32), memory[addresses[2] :]
    pool[:] = 0
    pool[ONE] = 1
    counters[: COUNTERS * LINE_WORDS] = 0  # every signal counts: blocks take turns where they wait
    for p in model:
        parameters.store_weights(pool, p, model.numpy()[p.name])
    polls = {
        pc
        for pc, i in enumerate(case.code.instructions)
        if i.family in ("LD", "LDG") and {"load_relaxed", "wait"} <= set(case.code.places(pc))
    }
    assert polls
    shared = case.kernel.spec.chip.shared_bytes
    runs = [Machine(case.code, memory, parameter, block, shared).run(polls) for block in range(BLOCKS)]
    waiting = deque(range(BLOCKS))
    with np.errstate(all="ignore"):
        while waiting:
            block = waiting.popleft()
            if next(runs[block])[0] >= 0:  # it is about to look whether all others have signalled
                waiting.append(block)

    assert memory[0] == 0  # nobody stopped the launch
    with vpps.Handle(model, optimizer=vpps.Adam(lr=1e-3), target="cpu") as handle:
        before = model.numpy()
        handle.fb(*example)
        loss = handle.sync_get_latest_loss()
    np.testing.assert_allclose(pool[plan.loss_slot], loss, rtol=1e-5)
    for p in model:
        found = parameters.fetch(pool, p, parameters.places[p].weights)
        moved = np.abs(model.numpy()[p.name] - before[p.name]) > 0
        np.testing.assert_allclose(found[moved], model.numpy()[p.name][moved], atol=2e-6, err_msg=p.name)
        assert moved.any()


@pytest.mark.nvrtc
@needs_nvrtc
def test_counts_follow_from_code_and_script(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    """A warp multiplies R x C weights by each vector; barriers are those of the plan; every cycle goes to something."""
    from gpu_cost.executing import executed, slowest
    from gpu_cost.reporting import report, sums
    from gpu_cost.timing import Constants

    case, constants = program[-1], Constants()
    done = slowest([executed(case, 0, constants)])
    names = Counter(d.instruction.name for d in instructions(case.plan.script, entry_points(case.plan.script)[0]))
    barriers = sum(s.barriers for s in sums(done, constants, lambda e: e.phase).values())
    assert barriers == names["wait"] + names["barrier"] > 0
    chip = case.kernel.spec.chip
    products = [e for e in done if e.kind in ("product", "product and tail")]
    assert {e.kind for e in products} == {"product", "product and tail"}
    multiplies = {
        pc
        for pc, i in enumerate(case.code.instructions)
        if i.family == "FFMA" and "slot_product" in case.code.places(pc)
    }
    for e in products:
        assert e.decoded is not None
        matrix = next(m for m in chip.matrices if m.number == e.decoded.fields["matrix"])
        slot, n = chip.slots[matrix.first], e.decoded.n
        tiles, rest = divmod(n, chip.tile)
        few = min(2, chip.tile)  # one that is left costs as much as two
        vectors = chip.tile * tiles + (0 if rest == 0 else few if rest <= few else chip.tile)
        multiplied = sum(issued for pc, issued in e.spent.by_pc.items() if pc in multiplies)
        assert multiplied == 8 * slot.rows * slot.columns * vectors, e.decoded
        assert e.kind != "product" or multiplied == e.spent.issued["FFMA"], e.decoded  # tails have others of their own
    for e in done:
        assert sum(e.spent.by.values()) == pytest.approx(e.spent.cycles)

    report(case, done, constants, top=3)
    printed = capsys.readouterr()
    assert '"case": "small step"' in printed.out
    assert "| forward: product and tail |" in printed.err


@pytest.mark.host
@pytest.mark.parametrize(
    "opcode, operands", [("HMMA.16816", ("R0", "R4", "R8", "R0")), ("IADD3.WRAP", ("R0", "R1", "R2", "RZ"))]
)
def test_what_is_not_known_is_named(opcode: str, operands: tuple[str, ...]) -> None:
    """The program ends where the code has what it does not know; it never goes on with a guess."""
    from gpu_cost.machine import Machine, UnknownInstruction
    from gpu_cost.machine_code import Code, Instruction

    one = Instruction(0, "", opcode, operands, 1, 7, 7, 0, ())
    machine = Machine(Code([one], {}, [""], [], 8), np.zeros(8, np.uint32), np.zeros(2, np.uint32), 0, 64)
    with pytest.raises(UnknownInstruction, match=opcode):
        next(machine.run(set()))
