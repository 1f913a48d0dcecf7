"""Weights on the chip: models of every kind agree with the reference, race-free in any order of the threads, wherever
weights, transposes and gradients lie and however rows are dealt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

import vpps
from tests.comparison import FORWARD_TOLERANCE, GRADIENT_TOLERANCE, relative_error
from tests.kernels import know_gradients, widen
from tests.simt import models
from tests.simt.models import Network
from tests.training import ReferenceTraining
from vpps.model.precisions import Precisions
from vpps.ops.element import TF32_PAIR
from vpps.ops.precision import EXACT
from vpps.placement.onchip import ChipOptions as Options
from vpps.placement.onchip import OnChip, Tier, known_device
from vpps.reference import Reference, weights_of
from vpps.runtime.simt import SimtMachine

pytestmark = pytest.mark.simt


@pytest.fixture(autouse=True)
def one_kernel_for_both_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    widen(monkeypatch, SimtMachine, know_gradients)


SEEDS = (0, 1, 300, 50000)
Gradients = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Case:
    """A model with what is forced of its place on the chip, and what must have come of that.

    Attributes:
        network: makes the model.
        vps: virtual processors.
        options: what is forced.
        holds: whether the test tests what it says.
        paper: whether to run it with the schedule "paper", too.
        precision: of products, as a handle takes it.
    """

    network: Callable[[], Network]
    vps: int
    options: Options
    holds: Callable[[OnChip], bool]
    paper: bool = False
    precision: str | Mapping[str, str] = EXACT.name


def tiers(onchip: OnChip) -> set[str]:
    return {held.tier for held in onchip.held}


def shapes(onchip: OnChip) -> set[tuple[int, int, int]]:
    return {(slot.rows, slot.columns, slot.warps) for slot in onchip.chip.slots}


def some_wide() -> Network:
    return models.layers((16, 512), (16, 128), (40, 40), (10, 64))


def some_square() -> Network:
    return models.layers((100, 60), (33, 70), n=20)


def unevenly_dealt() -> Network:
    return models.layers((70, 40), (9, 33), (130, 20), n=9)


def wide_and_tall() -> Network:
    return models.layers((30, 170), (20, 24))


def goes_by_pieces(onchip: OnChip) -> bool:
    """Whether some fragments are larger than what they pass through, and of more than four columns a lane."""
    return any(s.rows * s.columns * 256 > onchip.chip.staged and s.columns == 6 for s in onchip.chip.slots)


ATTENTION = "W", "W^T", "V", "V^T"
EVERY_TIER: dict[str, Tier] = {
    "tree_lstm/U": "shared", "tree_lstm/U^T": "L2", "tree_lstm/W": "L2", "output/W": "registers",
}  # fmt: skip
CASES: dict[str, Case] = {
    "tree-lstm": Case(models.tree_lstm, 3, Options(), lambda c: c.gradients == "tiles", paper=True),
    "tagger": Case(models.tagger, 3, Options(), lambda c: "registers" in tiers(c)),
    "child-sum": Case(models.child_sum, 2, Options(), lambda c: "registers" in tiers(c), paper=True),
    "attention": Case(models.attention, 3, Options(), lambda c: "registers" in tiers(c), paper=True),
    "mv-rnn": Case(models.mv_rnn, 3, Options(), lambda c: {m.name for m in c.matrices} == {"W", "out"}, paper=True),
    "tied": Case(models.tied, 3, Options(), lambda c: {m.name for m in c.matrices} == {"U"}, paper=True),
    # one virtual processor
    "alone": Case(models.tree_lstm, 1, Options(), lambda c: "registers" in tiers(c)),
    # where gradients are
    "gradients in place": Case(
        models.tree_lstm, 3, Options(ownership="round-robin", rpw=1), lambda c: c.gradients == "overlay", paper=True
    ),
    "gradients in tiles, many slots": Case(
        some_square, 4, Options(groups=2, ownership="round-robin", rpw=1),
        lambda c: c.gradients == "tiles" and all(len(held.slots) > 1 for held in c.held),
    ),
    # shapes of slots
    "wk 1, 2, 4, 8": Case(some_wide, 8, Options(), lambda c: {slot.warps for slot in c.chip.slots} == {1, 2, 4, 8}),
    "wk 8, atomic": Case(
        some_wide, 8, Options(transposed="atomic"), lambda c: {1, 4, 8} <= {s.warps for s in c.chip.slots}
    ),
    **{
        f"round-robin, rpw {rpw}": Case(
            unevenly_dealt, 3, Options(ownership="round-robin", rpw=rpw),
            lambda c, rpw=rpw: {slot.rows for slot in c.chip.slots} == {rpw},  # type: ignore[misc]
        )
        for rpw in (1, 4)
    },
    "round-robin, atomic": Case(
        models.tree_lstm, 3, Options(ownership="round-robin", rpw=2, transposed="atomic"),
        lambda c: "atomic" in tiers(c), paper=True,
    ),
    "more virtual processors than rows": Case(
        lambda: models.layers((5, 30), (12, 20), (3, 16)), 9, Options(transposed="copy"),
        lambda c: c.of("W0").tier == "registers" and c.of("W2").tier == "L2", paper=True,
    ),
    # tiers
    "registers, shared memory, L2": Case(
        models.tree_lstm, 3, Options(tiers=EVERY_TIER), lambda c: tiers(c) == {"registers", "shared", "L2"}, paper=True
    ),
    "gradients in shared memory, over transposes": Case(
        models.attention, 3, Options(tiers=dict.fromkeys(ATTENTION, "shared"), ownership="round-robin", rpw=1),
        lambda c: tiers(c) == {"shared"} and c.gradients == "overlay",
    ),
    "L2": Case(
        models.attention, 3, Options(tiers=dict.fromkeys(ATTENTION, "L2")),
        lambda c: tiers(c) == {"L2"} and not c.chip.slots,
    ),
    "partial sums by atomics": Case(models.tree_lstm, 3, Options(transposed="atomic"), lambda c: "atomic" in tiers(c)),
    # passes over vectors
    **{
        f"tile {tile}": Case(some_square, 3, Options(tile=tile), lambda c, tile=tile: c.chip.tile == tile)  # type: ignore[misc]
        for tile in (8, 2, 1)  # 4: see below
    },
}  # fmt: skip


def elements(onchip: OnChip) -> set[str]:
    return {slot.element.name for slot in onchip.chip.slots}


def in_pairs(onchip: OnChip) -> bool:
    return TF32_PAIR.name in elements(onchip)


# What tensor cores multiply: all that is different from slots of float32. (Few rows in 3xtf32 get such slots.)
FRAGMENTS: dict[str, Case] = {
    **{
        f"tails take results, {name}": Case(
            models.tree_lstm, 3, Options(), lambda c: c.gradients == "tiles", paper=name == "bf16", precision=name
        )
        for name in ("bf16", "tf32")
    },
    "tails take results, 3xtf32": Case(models.tree_lstm, 1, Options(), in_pairs, precision="3xtf32"),
    **{
        f"partial sums by atomics, {name}": Case(
            some_wide, 8, Options(transposed="atomic"), lambda c: {4, 8} <= {s.warps for s in c.chip.slots},
            precision=name,
        )
        for name in ("bf16", "tf32")
    },
    "partial sums by atomics, 3xtf32": Case(
        some_square, 2, Options(transposed="atomic"), in_pairs, precision="3xtf32"
    ),
    "two blocks, 3xtf32": Case(some_square, 2, Options(), in_pairs, precision="3xtf32"),
    "vectors multiplied where they lie, in several passes": Case(
        lambda: models.layers((16, 512), (40, 128), n=75), 3, Options(), lambda c: c.chip.leaves_registers,
        precision="bf16",
    ),
    "vectors multiplied where they lie, at any float": Case(
        lambda: models.layers((40, 128), n=20, before=1), 3, Options(), lambda c: c.chip.leaves_registers,
        precision="bf16",
    ),
    "vectors of several segments multiplied where they lie, for tails": Case(
        lambda: models.tree_lstm(hidden=32, embedding=32, leaves=(36, 3)), 5, Options(),
        lambda c: c.chip.leaves_registers, precision="bf16",
    ),
    "several lots of rows": Case(
        some_square, 1, Options(), lambda c: max(s.rows for s in c.chip.slots) > 16, precision="bf16"
    ),
    "many slots, gradients in tiles, round-robin": Case(
        unevenly_dealt, 2, Options(groups=2, ownership="round-robin", rpw=8, transposed="atomic"),
        lambda c: c.gradients == "tiles" and max(len(held.slots) for held in c.held) > 1 and c.chip.turns,
        precision="bf16",
    ),
    "many slots, round-robin": Case(
        unevenly_dealt, 1, Options(ownership="round-robin", rpw=16),
        lambda c: max(len(held.slots) for held in c.held) > 1, precision="tf32",
    ),
    "pieces of what is wide": Case(
        wide_and_tall, 1, Options(ownership="round-robin", rpw=24), goes_by_pieces, precision="bf16"
    ),
    "tile 2": Case(some_square, 3, Options(tile=2), lambda c: c.chip.tile == 2, precision="bf16"),
    "fewer rows than 16": Case(
        lambda: models.layers((5, 30), (12, 20), (3, 16)), 9, Options(), lambda c: "registers" in tiers(c),
        precision="tf32",
    ),
    "registers, shared memory, L2, of rounded and exact matrices": Case(
        models.tree_lstm, 3, Options(tiers=EVERY_TIER),
        lambda c: tiers(c) == {"registers", "shared", "L2"} and elements(c) == {"bfloat16", "float32"},
        precision={"*": "bf16", "output/W": "float32"},
    ),
    **{
        f"matrices in memory, {name}": Case(
            models.mv_rnn, 2, Options(tiers=dict.fromkeys(("W", "W^T", "out", "out^T"), "L2")),
            lambda c: not c.chip.slots, precision=name,
        )
        for name in ("bf16", "tf32")
    },
    "groups": Case(models.tagger, 2, Options(groups=2), lambda c: c.chip.groups == 2, precision="bf16"),
}  # fmt: skip
CASES |= FRAGMENTS


RUNS = [(name, "vector") for name in CASES] + [(name, "paper") for name, case in CASES.items() if case.paper]


@pytest.mark.parametrize("name, schedule", RUNS)
def test_gradients_agree_with_the_reference_in_any_order_of_the_threads(name: str, schedule: str) -> None:
    check(CASES[name], schedule)


@pytest.mark.usefixtures("roomy_kernels")
def test_a_matrix_leaves_the_chip_where_a_graph_does_more_with_it_than_to_multiply_vectors() -> None:
    network = models.tied()
    witness = ReferenceTraining(network.model, vpps.Adam(lr=0.01), clip_norm=1.0)
    with vpps.Handle(network.model, vpps.Adam(lr=0.01), vps=3, clip_norm=1.0) as handle:
        for seed, held in ((0, {"E", "U", "W"}), (1, {"U"}), (2, {"U"}), (3, {"U"})):
            handle.fb(*network.batch(seed), accumulate=seed == 2)
            witness.fb(*network.batch(seed), accumulate=seed == 2)
            onchip = handle._engine.arrangement.onchip
            assert onchip is not None
            assert {m.name for m in onchip.matrices} == held
    for p in network.model:
        assert relative_error(p.numpy(), witness.weights[p.name]) < GRADIENT_TOLERANCE, p.name


@pytest.mark.usefixtures("roomy_kernels")
@pytest.mark.parametrize("rpw", [8, 16])
def test_slots_are_loaded_piece_by_piece(rpw: int) -> None:
    network = wide_and_tall()
    rule = vpps.Adam(lr=0.01, eps=1e-3)
    witness = ReferenceTraining(network.model, rule, clip_norm=0.1)
    options = Options(ownership="round-robin", rpw=rpw)
    with vpps.Handle(network.model, rule, vps=1, clip_norm=0.1, onchip=options, precision="3xtf32") as handle:
        for seed in range(4):
            handle.fb(*network.batch(seed), accumulate=seed == 1)
            witness.fb(*network.batch(seed), accumulate=seed == 1)
        onchip = handle._engine.arrangement.onchip
        assert onchip is not None
        assert goes_by_pieces(onchip)
    for p in network.model:
        assert relative_error(p.numpy(), witness.weights[p.name]) < GRADIENT_TOLERANCE, p.name


@pytest.mark.parametrize("options", [Options(ownership="round-robin", rpw=1, tile=4), Options(tile=4)])
def test_a_gpu_without_asynchronous_copies_has_one_buffer_of_vectors(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimtMachine, "device", property(lambda self: replace(known_device("T4"), sms=self.vps)))
    check(Case(some_square, 3, options, lambda c: c.chip.buffers == 1), "vector")


def far_from_ties(network: Network, precisions: Precisions) -> int:
    """Of a batch whose vectors are as far as can be from where they would be rounded the other way."""

    def distance(seed: int) -> float:
        graph, loss = network.batch(seed)
        reference = Reference(graph, weights_of(network.model), precisions=precisions)
        reference.backward(loss)
        return reference.nearest_tie

    return max(range(1, 12 if precisions.is_reduced else 2), key=distance)


def check(case: Case, schedule: str) -> None:
    """Loss, gradients and values are those of the reference, with the same bits in any order of the threads."""
    network = case.network()
    precisions = Precisions.given(case.precision)
    graph, loss = network.batch(far_from_ties(network, precisions))
    reference = Reference(graph, weights_of(network.model), precisions=precisions)
    expected = reference.backward(loss)
    with vpps.Handle(
        network.model,
        vps=case.vps,
        schedule=schedule,
        onchip=case.options,
        precision=case.precision,
        example=(graph, loss),  # with tails of inference: one kernel
    ) as handle:
        results = []
        for seed in SEEDS:
            assert isinstance(handle._engine.machine, SimtMachine)
            handle._engine.machine.seed = seed
            results.append(handle.gradients(graph, loss))
        onchip = handle._engine.arrangement.onchip
        assert onchip is not None
        assert case.holds(onchip)
        for x in network.inputs:
            assert relative_error(handle.input_gradient(x), reference.gradient(x)) < GRADIENT_TOLERANCE
        assert handle.forward(graph, [loss])[0] == pytest.approx(results[0][0], rel=FORWARD_TOLERANCE)
    for value, gradients in results:
        assert value == pytest.approx(float(reference.value(loss)), rel=FORWARD_TOLERANCE)
        for p in network.model:
            assert relative_error(gradients[p.name], expected[p.name]) < GRADIENT_TOLERANCE, p.name
    if "atomic" not in tiers(onchip):  # the order of whose additions is nobody's
        for value, gradients in results[1:]:
            assert value == results[0][0]
            for p in network.model:
                assert np.array_equal(gradients[p.name], results[0][1][p.name]), p.name
