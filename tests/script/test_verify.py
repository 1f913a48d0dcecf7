"""The verifier accepts the scheduler's scripts and finds every injected fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

import vpps
from tests.fuzz.breaking import places
from vpps.errors import ScriptError
from vpps.model.precisions import Precisions
from vpps.placement.distribution import Distribution
from vpps.placement.update import Update
from vpps.planner.plan import Plan
from vpps.planner.planner import Planner
from vpps.script.access import Access, word
from vpps.script.disassemble import Decoded, entry_points, instructions
from vpps.script.footprint import Cells
from vpps.script.verify import READS, Latest, Verifier, verify

pytestmark = pytest.mark.host

PANEL = 32
E = vpps.Expression


def make_plan(vps: int, clip_norm: float | None = None, train: bool = True, precision: str = "float32") -> Plan:
    """Return the plan for a small tree model whose units are sliced by panels: 64 hidden units, 2 parts.

    Args:
        train: False to plan inference of a single loss, so that memory is reused.
    """
    model = vpps.Model(seed=1)
    E = model.lookup("E", (9, 64))
    U = model.parameter("U", (128, 128))
    b = model.parameter("b", (128,))
    Wo = model.parameter("Wo", (3, 64))

    @vpps.cell
    def node(left: vpps.Expression, right: vpps.Expression) -> vpps.Expression:
        gate, update = vpps.split(U @ vpps.concat([left, right]) + b, 2)
        return vpps.sigmoid(gate) * vpps.tanh(update)

    graph = vpps.Graph()
    words = [graph.lookup(E, i) for i in range(6)]
    states = [node(a, c) for a, c in zip(words[::2], words[1::2], strict=True)]
    root = node(node(states[0], states[1]), states[2])
    optimizer = vpps.Adam()
    precisions = Precisions.given(precision)
    distribution = Distribution(model, vps, PANEL, len(optimizer.moments), train=True, precisions=precisions)
    planner = Planner(distribution)
    if not train:
        for state in states:
            root = node(root, state)
        return planner.plan_forward(graph, [vpps.cross_entropy(Wo @ root, 0)])
    loss = vpps.sum([vpps.cross_entropy(Wo @ s, i % 3) for i, s in enumerate([*states, root])])
    return planner.plan_training(graph, loss, Update(optimizer, 1, 1, clip_norm), 0)


def make_plan_of_lists(vps: int, width: int) -> Plan:
    """Attention, extrema and matrices. A width of 64 is sliced by units for two virtual processors, 8 by rows."""
    model = vpps.Model(seed=1)
    table, tall = model.lookup("table", (9, width)), model.lookup("tall", (4, width, 3))
    W = model.parameter("W", (width, width))

    @vpps.cell
    def node(q: E, M: E, xs: list[E]) -> E:
        ws = vpps.softmax(vpps.each(lambda x: vpps.dot(q, x), xs))
        ps = vpps.log_softmax(vpps.each(lambda x: vpps.tanh(W @ x), xs))
        pooled = vpps.sum(vpps.each(lambda w, x, p: w * x + p, ws, xs, ps)) + vpps.max(ps)
        m = W @ vpps.concat([M, M])[:width]
        return pooled + (m @ m.T) @ q + vpps.outer(q, pooled) @ vpps.tanh(m.T[1])

    graph = vpps.Graph()
    rows = [graph.lookup(table, i) for i in range(9)]
    states = [node(rows[n], graph.lookup(tall, n), rows[: 3 * n + 1]) for n in range(3)]
    states.append(node(states[0], graph.lookup(tall, 3), states))
    optimizer = vpps.SGD(lr=0.1)
    distribution = Distribution(model, vps, 32, len(optimizer.moments), train=True)
    loss = vpps.sum([vpps.sum(s) for s in states])
    return Planner(distribution).plan_training(graph, loss, Update(optimizer, 1, 1, None), 0)


def check(plan: Plan) -> None:
    verify(plan.script, plan.layout, plan.origin)


def listing(plan: Plan) -> Iterator[Decoded]:
    return instructions(plan.script, entry_points(plan.script)[0])


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("vps", [1, 2, 3, 7])
@pytest.mark.parametrize("clip_norm, train", [(None, True), (1.0, True), (None, False)])
def test_scripts_of_the_scheduler_pass(vps: int, clip_norm: float | None, train: bool, precision: str) -> None:
    check(make_plan(vps, clip_norm, train, precision))


@pytest.mark.parametrize("vps", [1, 2, 3, 7])
@pytest.mark.parametrize("width", [8, 64])
def test_scripts_on_lists_and_matrices_pass(vps: int, width: int) -> None:
    check(make_plan_of_lists(vps, width))


@pytest.mark.parametrize("vps", [1, 2, 7])
def test_every_word_of_pairs_is_written_by_one_and_read_where_products_find_it(vps: int) -> None:
    plan, words = make_plan(vps, precision="bf16"), 64 * 128  # words of U, and as many for its transpose
    verifier = Verifier(plan.script, plan.layout, plan.origin)
    update = next(d for d in listing(plan) if d.instruction.name == "outer_update.adam" and d.width == 128)
    start = word(update, "transposed") - words

    def touched(d: Decoded, access: Access) -> NDArray[np.int64]:
        cells = [np.unique(some.numbers) for p in range(vps) for some, how in verifier.touches(p, d) if how is access]
        found = np.concatenate(cells)
        return np.sort(found[(found >= start) & (found < start + 2 * words)])

    assert np.array_equal(touched(update, Access.WRITE), np.arange(start, start + 2 * words))  # no word twice
    products = [d for d in listing(plan) if d.instruction.name == "matvec" and d.width == 128]
    forward, backward = np.arange(start, start + words), np.arange(start + words, start + 2 * words)
    assert all(np.array_equal(np.unique(touched(d, Access.READ)), forward) for d in products[:3])
    assert all(np.array_equal(np.unique(touched(d, Access.READ)), backward) for d in products[-3:])


def barriers(plan: Plan) -> list[Decoded]:
    return [d for d in listing(plan) if d.instruction.name == "barrier"]


def test_a_missing_signal_is_a_deadlock() -> None:
    plan = make_plan(2)
    # The last signal goes to another counter, so no processor reaches the last target.
    plan.script[barriers(plan)[-1].position + 5] = 1
    with pytest.raises(ScriptError, match=r"deadlock: .*VP 0 at word .*VP 1"):
        check(plan)


class _Races(Verifier):
    """Treats all memory as already written, so that only races are found."""

    def access(self, p: int, d: Decoded, cells: Cells, access: Access) -> None:
        self.written_in[:] = 1 << 30  # later than all launches
        super().access(p, d, cells, access)


PLANS: dict[str, Callable[[], Plan]] = {
    "training": lambda: make_plan(2),
    "training in bf16": lambda: make_plan(2, precision="bf16"),
    "inference": lambda: make_plan(2, train=False),
    "lists by rows": lambda: make_plan_of_lists(2, 8),
    "lists by units": lambda: make_plan_of_lists(2, 64),
}


@pytest.mark.parametrize("kind", PLANS)
def test_a_wait_that_does_not_wait_is_a_race_where_anything_is_shared(kind: str) -> None:
    """Compare all accesses by brute force: without the barrier, two share an element, unless it is redundant."""
    n, races = len(barriers(PLANS[kind]())), 0
    for which in range(n):
        plan = PLANS[kind]()
        plan.script[barriers(plan)[which].position + 6] = 0  # target 0: already reached
        verifier = _Races(plan.script, plan.layout, plan.origin)
        if _conflicts(plan):
            races += 1
            with pytest.raises(ScriptError, match="race"):
                verifier.run()
        else:
            verifier.run()
    assert races > n // 2


def test_what_is_kept_of_reads_tells_what_all_of_them_would() -> None:
    """4 virtual processors access 6 elements; sometimes one waits for another's accesses."""
    rng, found = np.random.default_rng(3), {True: 0, False: 0}
    for _ in range(50):
        kept, every, clock = Latest(6, 4), np.zeros((6, 4), np.int64), np.eye(4, dtype=np.int64)
        for _ in range(40):
            p, q = rng.choice(4, 2, replace=False)
            cells = rng.choice(6, 3, replace=False)
            if rng.random() < 0.4:  # a signal of q, and p waits for it
                clock[p] = np.maximum(clock[p], clock[q])
                clock[q, q] += 1
            elif rng.random() < 0.5:
                kept.note(int(p), Cells(cells), clock[p])
                every[cells, p] = clock[p, p]
            late = (every[cells] > clock[p]).any(axis=0)
            who = kept.unknown(Cells(cells), clock[p])
            assert not late.any() if who is None else late[who]
            found[who is None] += 1
    assert min(found.values()) > 100


def _conflicts(plan: Plan) -> bool:
    verifier = Verifier(plan.script, plan.layout, plan.origin)
    epochs: list[list[list[tuple[set[int], Access]]]] = [[[] for _ in range(2)]]
    for d in listing(plan):
        if d.instruction.name == "barrier" and plan.script[d.position + 6]:
            epochs.append([[] for _ in range(2)])
        for p in range(2):
            if d.instruction.name not in ("barrier", "end"):
                epochs[-1][p].extend(
                    (set(cells.numbers.tolist()), Access.READ if access in READS else access)
                    for cells, access in verifier.touches(p, d)
                )
    harmless = {Access.READ}, {Access.ADD}  # any number at once
    return any(
        {mine_do, they_do} not in harmless and not mine.isdisjoint(theirs)
        for first, second in epochs
        for mine, mine_do in first
        for theirs, they_do in second
    )


def test_messages_name_the_cell_and_op() -> None:
    plan = make_plan(2)
    tanh = next(d for d in listing(plan) if d.instruction.name == "tanh")
    plan.script[tanh.position + 5] = plan.pool_floats - 8
    with pytest.raises(ScriptError, match=r"tanh \(forward of cell 'node', op 'tanh', from call \d+\)"):
        check(plan)


def test_pairs_of_another_matrix_are_found() -> None:
    plan = make_plan(2, precision="bf16")
    updates = [d for d in listing(plan) if d.instruction.name == "outer_update.adam"]
    first, second = (at for d in updates for name, _, at in places(d) if name == "transposed")
    plan.script[second] = plan.script[first]
    with pytest.raises(ScriptError, match=r"outer_update\.adam .* of 'Wo'.*: write after write race of VP 1 with VP 0"):
        check(plan)


def test_the_gradient_of_a_parameter_that_only_empty_lists_use_is_written() -> None:
    """The gradient is the sum over no elements, zero, and the next cell's gradient is added to it."""
    model = vpps.Model(seed=1)
    b = model.parameter("b", (8,), init="normal")
    lists = vpps.cell(lambda xs, x: vpps.sum(vpps.each(lambda y: y * b, xs)) + x)
    graph = vpps.Graph()
    x = graph.input([1.0] * 8)
    loss = vpps.sum(graph.call(lists, [], x) * b)
    distribution = Distribution(model, 2, 32, 0, train=True)
    check(Planner(distribution).plan_training(graph, loss, None, 0))
