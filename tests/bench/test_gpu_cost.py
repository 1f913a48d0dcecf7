"""Machine code executed without a GPU: whole launches to their results, and the counts that follow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import vpps
from tests.kernel.programs import tree_lstm
from tests.nvrtc import needs_nvrtc
from vpps.plan.distribution import ONE
from vpps.script.disassemble import entry_points, instructions
from vpps.script.instructions import COUNTERS

BLOCKS, HIDDEN = 2, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpu_cost")


@pytest.mark.nvrtc
@needs_nvrtc
def test_a_training_step_in_machine_code_gives_the_weights_of_the_cpu(folder: Path) -> None:
    """All blocks, from the loads to the update: no matrix in registers may be overwritten, no instruction misread."""
    import gpu_cost
    from gpu_cost_machine import BASE, Machine

    model, example = tree_lstm(HIDDEN, embedding=HIDDEN)
    case = gpu_cost.planned("whole", 3, model, example, folder, BLOCKS)
    plan, parameters = case.plan, case.kernel.parameters
    memory, parameter = gpu_cost.memory_of(plan)
    addresses = (parameter.view(np.uint64)[:3].astype(np.int64) - BASE) // 4
    pool, counters = memory[addresses[0] :].view(np.float32), memory[addresses[2] :]
    pool[:] = 0
    pool[ONE] = 1
    counters[: COUNTERS * gpu_cost.LINE_WORDS] = 0  # every signal counts: blocks take turns between barriers
    for p in model:
        parameters.store_weights(pool, p, model.numpy()[p.name])
    streams = [instructions(plan.script, entry) for entry in entry_points(plan.script)]
    shared = case.kernel.spec.chip.shared_bytes
    runs = [
        Machine(case.code, memory, parameter, block, shared).run({gpu_cost.interpreter(case.code)})
        for block in range(BLOCKS)
    ]
    running = set(range(BLOCKS))
    with np.errstate(all="ignore"):
        while running:
            for block in sorted(running):
                # A block is about to execute what its stream gives next; before a wait the others go on.
                while next(runs[block])[0] >= 0:
                    if next(streams[block]).instruction.name == "wait":
                        break
                else:
                    running.remove(block)

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
