"""Products with matrices in windows agree with the reference, without races in any order of the threads, for operands
of every form and in every precision. Their bits depend only on the number of columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

import vpps
from tests.comparison import FORWARD_TOLERANCE, GRADIENT_TOLERANCE, relative_error
from tests.kernels import know_gradients, widen
from tests.simt import models
from tests.simt.test_slots import Case, check, some_square, some_wide, tiers, unevenly_dealt
from tests.training import ReferenceTraining
from vpps.kernel.chip import PLACES
from vpps.placement.onchip import ChipOptions as Options
from vpps.placement.onchip import OnChip, known_device, windows
from vpps.runtime.simt import SimtMachine

pytestmark = pytest.mark.simt

WINDOWS = Options(groups=1)
PRECISIONS = ("bf16", "tf32", "3xtf32")


@pytest.fixture(autouse=True)
def one_kernel_for_both_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    widen(monkeypatch, SimtMachine, know_gradients)


def has_windows(onchip: OnChip) -> bool:
    return bool(onchip.chip.dense) and not onchip.chip.slots and tiers(onchip) <= {"shared", "registers", "L2"}


def has_fragments(onchip: OnChip) -> bool:
    return onchip.chip.has_fragments and tiers(onchip) <= {"shared", "registers", "L2"}


def in_pages(onchip: OnChip) -> bool:
    """True if 300 vectors with two segments each fill several pages."""
    return has_windows(onchip) and PLACES // 2 < 300


def in_tiles_of_rows(onchip: OnChip) -> bool:
    chip = onchip.chip
    return has_windows(onchip) and any(m.rows > chip.product_tiles[t].all_rows for m in chip.dense for t in m.tiles)


def in_two_chunks(onchip: OnChip) -> bool:
    return has_windows(onchip) and any(
        m.columns % 8 and m.columns > onchip.chip.chunk_columns for m in onchip.chip.dense
    )


def many_parts(parts: int = 70, n: int = 40) -> models.Network:
    """The vectors have too many segments for their addresses to be looked up in advance."""
    model = vpps.Model(seed=4)
    table, W = model.lookup("x", (9, 3), init="normal"), model.parameter("W", (12, 3 * parts))

    @vpps.cell
    def layer(*xs: vpps.Expression) -> vpps.Expression:
        return vpps.tanh(W @ vpps.concat(list(xs)))

    def batch(seed: int) -> models.Batch:
        rng, graph = np.random.default_rng(seed), vpps.Graph()
        rows = [graph.lookup(table, k) for k in range(9)]
        ys = [layer(*(rows[k] for k in rng.integers(0, 9, parts).tolist())) for _ in range(n)]
        weights = graph.input(rng.normal(size=12))
        return graph, vpps.mean([vpps.dot(weights, y) for y in ys])

    return models.Network(model, batch, [])


def uneven_parts() -> models.Network:
    """A chunk of columns begins within the second segment, not at a multiple of four of its columns."""
    model = vpps.Model(seed=4)
    a, b = model.lookup("a", (5, 132), init="normal"), model.lookup("b", (5, 384), init="normal")
    W = model.parameter("W", (20, 130 + 382))

    @vpps.cell
    def layer(x: vpps.Expression, y: vpps.Expression) -> vpps.Expression:
        return vpps.tanh(W @ vpps.concat([x[:130], y[:382]]))

    def batch(seed: int) -> models.Batch:
        rng, graph = np.random.default_rng(seed), vpps.Graph()
        pairs = rng.integers(0, 5, (40, 2)).tolist()
        ys = [layer(graph.lookup(a, i), graph.lookup(b, k)) for i, k in pairs]
        weights = graph.input(rng.normal(size=20))
        return graph, vpps.mean([vpps.dot(weights, y) for y in ys])

    return models.Network(model, batch, [])


CASES: dict[str, Case] = {
    "tree-lstm": Case(models.tree_lstm, 3, WINDOWS, has_windows, paper=True),
    "tagger": Case(models.tagger, 3, WINDOWS, has_windows),
    "child-sum": Case(models.child_sum, 2, WINDOWS, has_windows),
    "attention, with empty lists": Case(models.attention, 3, WINDOWS, has_windows),
    "mv-rnn": Case(models.mv_rnn, 3, WINDOWS, has_windows),
    "tied": Case(models.tied, 3, WINDOWS, has_windows),
    "rows in tiles": Case(lambda: models.layers((500, 30), n=20), 1, WINDOWS, in_tiles_of_rows),
    "narrow and wide": Case(some_wide, 8, WINDOWS, has_windows),
    "columns in two chunks": Case(lambda: models.layers((24, 300), (20, 513), n=35), 2, WINDOWS, in_two_chunks),
    "uneven": Case(unevenly_dealt, 3, WINDOWS, has_windows),
    "several passes": Case(some_square, 3, WINDOWS, has_windows),
    "at any float": Case(lambda: models.layers((40, 128), n=37, before=1), 3, WINDOWS, has_windows),
    "pages of vectors": Case(
        lambda: models.tree_lstm(hidden=16, embedding=16, leaves=(300, 2)), 3, WINDOWS, in_pages
    ),
    "chunks within segments": Case(uneven_parts, 2, WINDOWS, has_windows),
    "many segments": Case(many_parts, 2, WINDOWS, has_windows),
    "more virtual processors than rows": Case(
        lambda: models.layers((5, 30), (12, 20), (3, 16)), 9, WINDOWS, lambda c: c.of("W2").tier == "L2"
    ),
    "mv-rnn, in memory": Case(
        models.mv_rnn, 2, Options(tiers=dict.fromkeys(("W", "W^T", "out", "out^T"), "L2")),
        lambda c: tiers(c) == {"L2"}, precision="bf16",
    ),
    **{
        f"tree-lstm, {name}": Case(models.tree_lstm, 3, WINDOWS, has_fragments, paper=name == "bf16", precision=name)
        for name in PRECISIONS
    },
    **{
        f"{name}, bf16": Case(make, vps, WINDOWS, has_fragments, precision="bf16")
        for name, make, vps in (
            ("narrow and wide", some_wide, 8), ("at any float", lambda: models.layers((40, 128), n=37, before=1), 3),
            ("several segments", lambda: models.tree_lstm(hidden=32, embedding=32, leaves=(36, 3)), 5),
            ("rows in tiles", lambda: models.layers((500, 30), n=20), 1), ("attention", models.attention, 3),
        )
    },
    **{
        f"columns in two chunks, {name}": Case(
            lambda: models.layers((24, 300), (20, 513), n=35), 2, WINDOWS, in_two_chunks, precision=name
        )
        for name in PRECISIONS
    },
    "every precision": Case(
        lambda: models.layers((40, 60), (33, 70), (20, 44), (36, 132), n=20), 3, WINDOWS,
        lambda c: len({m.element.name for m in c.chip.dense}) == 4,
        precision={"W0": "bf16", "W1": "tf32", "W2": "3xtf32"},
    ),
    "groups of a tagger, bf16": Case(models.tagger, 4, Options(groups=2), has_fragments, precision="bf16"),
    "groups": Case(models.tree_lstm, 4, Options(groups=2), has_windows),
    "groups of a tagger": Case(models.tagger, 9, Options(groups=3), has_windows),
}  # fmt: skip
RUNS = [(name, "vector") for name in CASES] + [(name, "paper") for name, case in CASES.items() if case.paper]


@pytest.mark.parametrize("name, schedule", RUNS)
def test_gradients_agree_with_the_reference_in_any_order_of_the_threads(name: str, schedule: str) -> None:
    check(CASES[name], schedule)


def test_few_wide_vectors() -> None:
    """There are fewer vectors than a tile has, and a full tile does not fit into memory."""
    model = vpps.Model(seed=2)
    W = model.parameter("W", (1, 8000))
    graph, rng = vpps.Graph(), np.random.default_rng(3)
    x = rng.normal(size=8000).astype(np.float32)
    y = W @ graph.input(x)
    with vpps.Handle(model, target="simt", vps=1, onchip=WINDOWS) as handle:
        assert relative_error(handle.forward(graph, [y])[0], W.numpy().astype(np.float64) @ x) < FORWARD_TOLERANCE
        chip = handle._engine.arrangement.onchip.chip
        few = chip.product_tiles[chip.dense[0].tiles[0]]
        assert 4 * few.all_vectors * 8000 > chip.shared_bytes


def small(shared: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the emulated GPU the given KiB of shared memory."""
    known = replace(known_device(device), shared_per_block=shared << 10)
    monkeypatch.setattr(SimtMachine, "device", property(lambda self: replace(known, sms=self.vps)))


TWICE: dict[str, Callable[[], models.Network]] = {
    "tree-lstm": lambda: models.tree_lstm(hidden=40, embedding=40, leaves=(5, 2)),
    "tagger": lambda: models.tagger(hidden=40, embedding=40),
}


@pytest.mark.parametrize("name", TWICE)
@pytest.mark.parametrize("device, precision", [("RTX 3090", "float32"), ("T4", "float32"), ("RTX 3090", "bf16")])
def test_transposes_take_the_windows_of_their_matrices(
    name: str, device: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both do not fit into shared memory at once. The T4 has no asynchronous copies."""
    small(62 if precision == "float32" else 60, device, monkeypatch)

    def holds(onchip: OnChip) -> bool:
        windows = [m.window for m in onchip.chip.dense]
        return onchip.chip.changes_windows and max(map(windows.count, windows)) == 2

    check(Case(TWICE[name], 6, WINDOWS, holds, precision=precision), "vector")


@pytest.mark.parametrize("registers", [0, 80])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_matrices_take_turns_in_a_window(precision: str, registers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers of a network alternate, and only one of their matrices fits into shared memory."""
    small(34 if precision == "float32" else 38, "T4" if precision == "float32" else "RTX 3090", monkeypatch)
    monkeypatch.setattr(windows, "MOST_HOMES", registers)

    def holds(onchip: OnChip) -> bool:
        homes = {m.is_at_home for m in onchip.chip.dense if m.home != m.IN_WINDOW}
        return homes == {registers > 0} and len({m.window for m in onchip.chip.dense}) <= len(onchip.chip.dense) // 2

    check(Case(TWICE["tagger"], 6, WINDOWS, holds, precision=precision), "vector")


@pytest.mark.parametrize("registers", [0, 80])
@pytest.mark.parametrize("n", [5, 35])
@pytest.mark.parametrize("precision, shared, chunk", [("float32", 38, 128), ("bf16", 50, 256)])
def test_a_window_has_chunks_of_a_matrix(
    precision: str, shared: int, chunk: int, n: int, registers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chunks come from registers or from memory, for few vectors and for many."""
    small(shared, "RTX 3090", monkeypatch)
    monkeypatch.setattr(windows, "MOST_HOMES", registers)

    def holds(onchip: OnChip) -> bool:
        return {m.is_at_home for m in onchip.chip.dense if m.chunk == chunk} == {registers > 0}

    network = models.layers((24, 300), (20, 513), n=n)
    check(Case(lambda: network, 2, WINDOWS, holds, precision=precision), "vector")


def test_a_matrix_that_is_larger_than_shared_memory_stays_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    small(24, "RTX 3090", monkeypatch)
    check(Case(some_wide, 2, WINDOWS, lambda c: c.of("W0").tier == "L2" and c.of("W3").tier == "shared"), "vector")


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


def values(
    precision: str, vps: int, groups: int, n: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> NDArray[np.float32]:
    """The results of a product with n vectors, in passes of at most `most` vectors."""
    monkeypatch.setattr(windows, "VECTORS", ((most, 0),))
    model = vpps.Model(seed=2)
    W, b = model.parameter("W", (24, 300)), model.parameter("b", (24,))
    graph, rng = vpps.Graph(), np.random.default_rng(3)
    ys = [W @ graph.input(rng.normal(size=300).astype(np.float32)) + b for _ in range(n)]
    with vpps.Handle(model, target="simt", vps=vps, onchip=Options(groups=groups), precision=precision) as handle:
        return np.array(handle.forward(graph, ys))


@pytest.mark.parametrize("precision", ["float32", "bf16", "3xtf32"])
def test_bits_follow_from_the_number_of_columns(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not depend on tiles, the number of vectors, or the division among virtual processors and groups."""
    whole = values(precision, 1, 1, 45, 32, monkeypatch)
    for vps, groups, n, most in ((6, 2, 45, 16), (3, 1, 7, 8)):
        assert np.array_equal(values(precision, vps, groups, n, most, monkeypatch), whole[:n]), (vps, groups, n, most)
