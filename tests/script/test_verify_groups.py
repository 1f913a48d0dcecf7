"""The verifier supports groups: it accepts the scheduler's scripts and finds every missing barrier between groups."""

from __future__ import annotations

import numpy as np
import pytest

import vpps
from tests.script.test_verify import _Races, check
from vpps.errors import ScriptError
from vpps.placement.distribution import Distribution
from vpps.placement.update import Update
from vpps.planner.plan import Plan
from vpps.planner.planner import Planner
from vpps.script.disassemble import Decoded, entry_points, instructions
from vpps.script.encode import AnyWord, encode, plain
from vpps.script.footprint import MemoryMap
from vpps.script.instructions import HEADER_WORDS, MAGIC, Flag
from vpps.script.verify import verify

pytestmark = pytest.mark.host

WIDTH = 6
SIZES = [(2, 1), (2, 3), (4, 2)]  # groups, virtual processors in each


def make_plan(groups: int, vps: int, train: bool = True, clip_norm: float | None = None) -> Plan:
    """Chains that begin with one shared learned state, and a loss that joins them: every kind of group barrier."""
    model = vpps.Model(seed=1)
    E = model.lookup("E", (9, WIDTH))
    U = model.parameter("U", (2 * WIDTH, 2 * WIDTH))
    b = model.parameter("b", (2 * WIDTH,))
    W = model.parameter("W", (3, WIDTH))

    @vpps.cell
    def step(state: vpps.Expression, word: int) -> vpps.Expression:
        gate, update = vpps.split(U @ vpps.concat([state, vpps.lookup(E, word)]) + b, 2)
        return vpps.sigmoid(gate) * vpps.tanh(update)

    graph = vpps.Graph()
    start = graph.lookup(E, 0)
    losses = []
    for chain in range(5):
        state = start
        for word in range(chain % 3 + 1):
            state = step(state, word)
        losses.append(vpps.cross_entropy(W @ state, chain % 3))
    loss = vpps.sum(losses) * 0.5
    optimizer = vpps.Adam()
    distribution = Distribution(model, vps, 1, len(optimizer.moments), train=True, groups=groups)
    planner = Planner(distribution)
    if not train:
        return planner.plan_forward(graph, [loss])
    return planner.plan_training(graph, loss, Update(optimizer, 1, 1, clip_norm), 0)


@pytest.mark.parametrize("groups, vps", SIZES)
@pytest.mark.parametrize("train, clip_norm", [(True, None), (True, 1.0), (False, None)])
def test_scripts_of_the_scheduler_pass(groups: int, vps: int, train: bool, clip_norm: float | None) -> None:
    check(make_plan(groups, vps, train, clip_norm))


def meetings(plan: Plan, group: int) -> list[Decoded]:
    """Return a group's waits for other groups."""
    layout = plan.layout
    entry = entry_points(plan.script)[group * (layout.n_vps // layout.groups)]
    waits = [d for d in instructions(plan.script, entry) if d.instruction.name == "wait"]
    return [d for d in waits if d.fields["counter"] == layout.groups]


def test_groups_meet_around_what_one_of_them_runs_for_all() -> None:
    plan = make_plan(2, 3)
    assert plan.grouping is not None
    assert plan.grouping.first_own == 1  # the shared first state of all chains is there before them
    # Group 0 waits before its own part, the joining vertices, the loss and its own part backward (gradients of the
    # joining vertices are constants), the gradient of the shared state, the watches, the gradients of the weights, the
    # update. The other groups wait for the shared state, the joining vertices, and then as group 0 does.
    assert [len(meetings(plan, group)) for group in (0, 1)] == [7, 5]
    ends = [d for d in instructions(plan.script, entry_points(plan.script)[0]) if d.flags & Flag.ALL]
    updates = {f"{name}.adam" for name in ("step_tiles", "update_rows", "update_vector")}
    assert {d.instruction.name for d in ends} == {"outer_tiles", "watch", "guard", "column_sum", "gather_sum", *updates}


@pytest.mark.parametrize("groups, vps", SIZES)
@pytest.mark.parametrize("train", [True, False])
def test_groups_that_do_not_wait_for_each_other_are_found(groups: int, vps: int, train: bool) -> None:
    # In some places only group 0 runs the awaited work, but not where it joins values from other groups.
    waits = [
        (group, i) for group in range(1, groups) for i in range(len(meetings(make_plan(groups, vps, train), group)))
    ]
    for group, which in [(0, 1), *waits]:
        plan = make_plan(groups, vps, train)
        wait = meetings(plan, group)[which]
        plan.script[wait.position + wait.words - 1] = 0  # its target: already reached
        with pytest.raises(ScriptError, match=r"race|nothing has written|too early"):
            check(plan)


@pytest.mark.parametrize(
    "which, found", [(0, "race"), (1, "may signal too early"), (2, "race"), (3, "race"), (4, "race")]
)
def test_what_a_group_does_too_early_is_found(which: int, found: str) -> None:
    """The shared state, the joining vertices, the end, the gradients, the update: a group without the wait races there.

    A group that does not wait for the joining vertices sends its next signals too early. Other groups may count these
    as the signals that they wait for, which is the finding.
    """
    plan = make_plan(2, 3)
    wait = meetings(plan, 1)[which]
    plan.script[wait.position + wait.words - 1] = 0
    with pytest.raises(ScriptError, match=found):
        _Races(plan.script, plan.layout, plan.origin).run()


def counting(*streams: list[tuple[str, int]]) -> None:
    """Verify virtual processors that only send signals and wait for certain numbers of them."""
    words: list[AnyWord] = [MAGIC, len(streams), 1, 0] + [0] * len(streams)
    for p, stream in enumerate(streams):
        words[HEADER_WORDS + p] = len(words)
        for name, target in stream:
            fields = {"target": target} if name == "wait" else {}
            words.extend(encode(name, 0, 0, counter=0, **fields))
        words.extend(encode("end", 0, 0))
    words[3] = len(words)
    nothing = np.zeros((0, 5), np.int64)
    verify(plain(words), MemoryMap(len(streams), 1, 1, 1, nothing, nothing[:, :2], nothing[:, :2], nothing[:, :2]))


def test_signals_that_may_be_taken_for_others_are_found() -> None:
    """VP 1 signals twice: VP 0 waits for one signal from each, and may continue before VP 2 has signalled."""
    signal, wait = ("signal", 0), ("wait", 3)
    counting([signal, wait], [signal, wait, signal], [signal])
    with pytest.raises(ScriptError, match=r"too early: counter 0 may reach 3"):
        counting([signal, wait], [signal, signal], [signal])


def test_a_group_that_does_not_signal_to_others_is_waited_for_in_vain() -> None:
    plan = make_plan(2, 2)
    entry = entry_points(plan.script)[2]
    signals = [d for d in instructions(plan.script, entry) if d.instruction.name == "signal"]
    last = [d for d in signals if d.fields["counter"] == 2][-1]
    plan.script[last.position + last.words - 1] = 5
    with pytest.raises(ScriptError, match="deadlock"):
        check(plan)


def test_rows_of_another_group_are_not_touched() -> None:
    """With one row too many, group 0's last step writes to group 1's memory."""
    plan = make_plan(2, 2)
    entry = entry_points(plan.script)[0]
    products = [d for d in instructions(plan.script, entry) if d.instruction.name == "matvec" and d.width == 2 * WIDTH]
    forward = [d for d in products if plan.origin(d.position).startswith("forward")]
    plan.script[forward[-1].position + 2] += 1
    with pytest.raises(ScriptError, match="race"):
        check(plan)


def test_instructions_for_all_that_are_divided_by_group_are_found() -> None:
    """Without flag ALL, each group would update all weights, and all would write the same elements."""
    plan = make_plan(2, 2)
    step = next(
        d
        for d in instructions(plan.script, entry_points(plan.script)[0])
        if d.flags & Flag.ALL and d.instruction.name.startswith("step_tiles")
    )
    plan.script[step.position] &= ~np.uint32(int(Flag.ALL) << 16)
    with pytest.raises(ScriptError, match="race"):
        _Races(plan.script, plan.layout, plan.origin).run()
