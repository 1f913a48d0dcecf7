"""What a launch has to do: exact against hand counts, against the kernel's own count, and alike for both schedules."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import vpps
from vpps.compiler.passes import Passes
from vpps.engine.timeline import Timeline
from vpps.kernel.host_compiler import tile_of_machine
from vpps.model.optim import OPTIMIZERS
from vpps.report.roofline.work import PHASES, Work, work_of

pytestmark = pytest.mark.cpu

Step = Callable[[vpps.Model], tuple[vpps.Graph, vpps.Expression]]
PANEL = tile_of_machine().panel
ROWS, COLUMNS, N = 64, 32, 5  # whole panels of every tile


def launched(build: Step, optimizer: vpps.Optimizer | None = None, seed: int = 1, **options: object) -> Timeline:
    """One step of training."""
    model = vpps.Model(seed=seed)
    with vpps.Handle(model, optimizer, target="cpu", timeline=True, **options) as handle:
        handle.fb(*build(model))
        return handle.timeline()


def counted(build: Step, optimizer: vpps.Optimizer | None = None, **options: object) -> Work:
    return work_of(launched(build, optimizer, **options).plan, PANEL)


def products(model: vpps.Model) -> tuple[vpps.Graph, vpps.Expression]:
    """The sum of W x + b for N vectors of data."""
    W, b = model.parameter("W", (ROWS, COLUMNS)), model.parameter("b", (ROWS,))

    @vpps.cell
    def affine(x: vpps.Expression) -> vpps.Expression:
        return vpps.sum(W @ x + b)

    graph = vpps.Graph()
    return graph, vpps.sum([affine(graph.input(np.full(COLUMNS, 0.1 * k))) for k in range(N)])


def chain(model: vpps.Model) -> tuple[vpps.Graph, vpps.Expression]:
    """Two steps of an LSTM of 32 units over embeddings of 32."""
    table = model.lookup("words", (7, COLUMNS))
    lstm = vpps.nn.LSTM(model, COLUMNS, COLUMNS, name="lstm")
    graph = vpps.Graph()
    return graph, vpps.sum(lstm.sequence(graph, [graph.lookup(table, k) for k in (3, 5)])[-1])


class Everything:
    """Matrices sliced by units and by rows, one whose last panel is padded, lists, softmax, dropout, matrices."""

    def __call__(self, model: vpps.Model) -> tuple[vpps.Graph, vpps.Expression]:
        table = model.lookup("E", (9, ROWS))
        U = model.parameter("U", (2 * ROWS, 2 * ROWS))
        V, Wo = model.parameter("V", (ROWS, ROWS)), model.parameter("Wo", (3, ROWS))
        M = model.parameter("M", (40, 16))
        model.parameter("unused", (5, 7))

        @vpps.cell
        def node(left: vpps.Expression, right: vpps.Expression, others: list[vpps.Expression]) -> vpps.Expression:
            gate, update = vpps.split(U @ vpps.concat([left, right]), 2)
            near = vpps.sum(vpps.each(lambda x: vpps.tanh(V @ x), others))
            return vpps.dropout(vpps.sigmoid(gate) * vpps.tanh(update), 0.1) + near + vpps.mean(vpps.softmax(update))

        graph = vpps.Graph()
        words = [graph.lookup(table, k) for k in range(6)]
        first = node(words[0], words[1], [])
        second = node(words[2], words[3], words[4:])
        root = node(first, second, words[:1])
        scores = [vpps.cross_entropy(Wo @ s, k) for k, s in enumerate([first, second, root])]
        matrix = vpps.sum(vpps.tanh(M @ vpps.reshape(root, (16, 4))))
        return graph, vpps.sum([*scores, matrix])


class TestByHand:
    def test_a_matrix_times_vectors(self) -> None:
        work = counted(products, vpps.SGD(lr=0.1), vps=1)
        kinds, area = work.by(2), ROWS * COLUMNS
        forward, backward = (work.by_kind[phase, "affine", "matvec"] for phase in ("forward", "backward"))
        assert forward.flops == N * ROWS * (2 * COLUMNS + 1)  # the bias is an addition more
        assert backward.flops == 2 * N * area
        assert forward.weights == backward.weights == 4 * area
        # The vectors and the bias are read, the products written.
        assert forward.activations == 4 * N * (COLUMNS + 2 * ROWS)
        assert backward.activations == 4 * N * (COLUMNS + ROWS)
        # The only contribution to the gradient makes the step as well: nothing of it goes to memory.
        step = kinds["outer_update.sgd"]
        assert step.flops == 2 * N * area + (4 + 1) * area
        assert step.gradients == 0
        assert step.updates == 4 * (2 + 1) * area  # read, written, and written into the transpose
        assert kinds["column_sum"].flops == N * ROWS
        assert kinds["update_vector.sgd"].flops == (4 + 1) * ROWS
        assert work.barriers == 0

    def test_what_its_phases_touch(self) -> None:
        work = counted(products, vpps.SGD(lr=0.1), vps=1)
        forward, gradients = work.touched["forward"], work.touched["gradients"]
        assert forward.matrices == 4 * ROWS * COLUMNS
        assert forward.parameters == 0
        assert work.fresh["forward"] == forward
        # The weights are read and written, the transpose and the gradient of the bias are written.
        assert gradients.parameters == 4 * (3 * ROWS * COLUMNS + ROWS)
        # Only the gradient of the bias has nothing touched before: backward has read the transpose.
        assert work.fresh["gradients"].parameters == 4 * ROWS
        assert gradients.matrices == 0
        assert work.resident > forward.bytes

    def test_an_lstm(self) -> None:
        """Two steps without any pass of the cell compiler: every instruction follows from the equations."""
        none = Passes(**dict.fromkeys(("constants", "horizontal", "lazy_batching", "fusion", "alignment"), False))
        work = counted(chain, vpps.SGD(lr=0.1), vps=1, passes=none)
        h, steps, gates = COLUMNS, 2, 4 * COLUMNS
        found = {(phase, kind): a.flops for (phase, cell, kind), a in work.by_kind.items() if cell == "lstm.step"}
        assert found == {
            ("forward", "matvec"): steps * gates * (2 * h + 2 * h + 1),  # W x + b, U h
            ("forward", "add"): steps * (gates + h),  # of the two products; of i u and f c
            ("forward", "sigmoid"): steps * 3 * h * 10,
            ("forward", "tanh"): steps * 2 * h * 10,
            ("forward", "mul"): steps * 3 * h,
            ("backward", "gather_sum"): 0,  # h and c have a reader each
            ("backward", "mul.grad0"): steps * 3 * h,
            ("backward", "mul.grad1"): steps * 3 * h,
            ("backward", "tanh.grad0"): steps * (2 * h * 3 + h),  # that of c is added to what comes from the next step
            ("backward", "sigmoid.grad0"): steps * 3 * h * 3,
            ("backward", "matvec"): steps * gates * (2 * h + 2 * h),
            ("gradients", "watch"): 0,  # compares
            ("gradients", "column_sum"): steps * gates,
            ("gradients", "outer_update.sgd"): gates * 2 * h * (2 * steps + 5),
        }
        assert work.of_phase("forward").weights == 4 * 2 * steps * gates * h
        assert work.touched["forward"].matrices == 4 * 2 * gates * h

    def test_adding_sums_is_counted_once_per_addend_but_the_first(self) -> None:
        def three_readers(model: vpps.Model) -> tuple[vpps.Graph, vpps.Expression]:
            W = model.parameter("W", (ROWS, ROWS))

            @vpps.cell
            def layer(x: vpps.Expression) -> vpps.Expression:
                return W @ x

            graph = vpps.Graph()
            first = layer(graph.input(np.ones(ROWS)))
            return graph, vpps.sum([vpps.sum(layer(first)) for _ in range(3)])

        work = counted(three_readers, vps=1, passes=Passes(fusion=False))
        assert work.by_kind["backward", "layer", "gather_sum"].flops >= 2 * ROWS


class TestAgainstTheKernel:
    @pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda rule: rule.__name__)
    def test_bytes_of_steps_are_those_it_counts(self, optimizer: type[vpps.Optimizer]) -> None:
        self.check(launched(Everything(), optimizer(lr=0.01), vps=2))

    @pytest.mark.parametrize("schedule", ["vector", "paper"])
    @pytest.mark.parametrize("vps", [1, 2, 3])
    def test_bytes_are_those_it_counts(self, schedule: str, vps: int) -> None:
        self.check(launched(Everything(), vpps.Adam(), vps=vps, schedule=schedule, clip_norm=1.0))

    def test_bytes_of_many_vectors_are_those_it_counts(self) -> None:
        """Several passes of outer products, and several blocks of vectors."""

        def wide(model: vpps.Model) -> tuple[vpps.Graph, vpps.Expression]:
            W = model.parameter("W", (40, 2000))
            graph = vpps.Graph()

            @vpps.cell
            def one(x: vpps.Expression) -> vpps.Expression:
                return vpps.sum(W @ x)

            return graph, vpps.sum([one(graph.input(np.full(2000, 0.01))) for _ in range(300)])

        for clip in (None, 1.0):
            self.check(launched(wide, vpps.Adam(), vps=2, clip_norm=clip))
            self.check(launched(wide, vpps.Adam(), vps=2, clip_norm=clip, precision="bf16"))

    @pytest.mark.parametrize("clip", [None, 1.0])
    def test_bytes_of_what_is_rounded_are_those_it_counts(self, clip: float | None) -> None:
        """Products read half as many as in float32."""
        timelines = {
            precision: launched(Everything(), vpps.Adam(), vps=3, clip_norm=clip, precision=precision)
            for precision in ("float32", "bf16")
        }
        for timeline in timelines.values():
            self.check(timeline)
        works = {precision: work_of(timeline.plan, PANEL) for precision, timeline in timelines.items()}
        exact, rounded = works["float32"], works["bf16"]
        assert exact.touched["forward"].matrices == 2 * rounded.touched["forward"].matrices
        assert exact.total.flops == rounded.total.flops > rounded.total.paired > exact.total.paired == 0

    @staticmethod
    def check(timeline: Timeline) -> None:
        work = work_of(timeline.plan, PANEL)
        kinds = work.by(2)
        assert work.total.weights == timeline.weight_bytes.sum() > 0
        # What the last outer product of a gradient still adds to in memory, the kernel counts as part of its step.
        fused = sum(a.gradients for kind, a in kinds.items() if kind.startswith("outer_update"))
        outer = sum(kinds[kind].gradients for kind in ("outer", "packed_matmul_gradient") if kind in kinds)
        assert outer == timeline.gradient_bytes.sum()
        assert work.total.updates + fused == timeline.update_bytes.sum()
        executed = timeline.records[~np.isin(timeline.forms, ("Signal", "Wait", "End"))]
        assert work.total.instructions == len(executed)
        waits = timeline.records[timeline.forms == "Wait"]["vp"]
        assert work.barriers == (np.bincount(waits).max() if len(waits) else 0)


class TestWhateverTheDivision:
    def test_operations_are_the_same(self) -> None:
        """For both schedules and any number of virtual processors."""
        works = [
            counted(Everything(), vpps.SGD(lr=0.1), vps=vps, schedule=schedule)
            for schedule in ("vector", "paper")
            for vps in (1, 2, 3)
        ]
        first = works[0]
        for work in works:
            assert work.total.flops == first.total.flops
            for phase in PHASES:
                assert work.of_phase(phase).flops == first.of_phase(phase).flops
                assert work.touched[phase].matrices == first.touched[phase].matrices

    def test_fused_and_unfused_cells_count_the_same_operations(self) -> None:
        fused, unfused = (counted(chain, vps=1, passes=Passes(fusion=f, recompute=False)) for f in (True, False))
        assert fused.total.flops == unfused.total.flops
        assert fused.total.activations < unfused.total.activations

    def test_the_paper_reads_matrices_for_every_vertex(self) -> None:
        vector, paper = (counted(products, vps=1, schedule=schedule) for schedule in ("vector", "paper"))
        assert paper.of_phase("forward").weights == N * vector.of_phase("forward").weights

    def test_parts_add_up(self) -> None:
        work = counted(Everything(), vps=2)
        for position in range(3):
            assert sum(a.flops for a in work.by(position).values()) == work.total.flops
            assert sum(a.bytes for a in work.by(position).values()) == work.total.bytes
        assert {"node", ""} <= set(work.by(1))

    def test_a_plan_of_inference_has_one_phase(self) -> None:
        model = vpps.Model(seed=1)
        graph, loss = products(model)
        with vpps.Handle(model, target="cpu", vps=1, train=False, timeline=True) as handle:
            handle.forward(graph, [loss])
            work = work_of(handle.timeline().plan, PANEL)
        assert set(work.by(0)) == {"forward"}
        assert work.total.updates == work.total.gradients == 0
