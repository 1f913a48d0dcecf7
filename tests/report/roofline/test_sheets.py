"""GPUs by their data sheets: the same work as on target cpu, divided among many more."""

from __future__ import annotations

import numpy as np
import pytest

import vpps
from tests.report.roofline.test_work import PANEL, Everything, chain, counted
from vpps.engine.configuration import Configuration
from vpps.errors import HandleError
from vpps.placement.onchip import DEVICES
from vpps.report import inspect
from vpps.report.roofline.floors import floor_of
from vpps.report.roofline.sheets import SHEETS, device_named, sheet_peaks
from vpps.report.roofline.work import PHASES, Work, work_of

ROWS, COLUMNS, LAYERS = 1024, 256, 3


def large(model: vpps.Model) -> tuple[vpps.Graph, vpps.Expression]:
    """A recurrence with a matrix that the chip holds."""
    W, b = model.parameter("W", (ROWS, COLUMNS)), model.parameter("b", (ROWS,))

    @vpps.cell
    def layer(x: vpps.Expression) -> vpps.Expression:
        first, *_ = vpps.split(vpps.tanh(W @ x + b), ROWS // COLUMNS)
        return first

    graph = vpps.Graph()
    x = graph.input(np.ones(COLUMNS), grad=True)
    for _ in range(LAYERS):
        x = layer(x)
    return graph, vpps.sum(x)


def on_gpu(build: object, name: str, schedule: str = "vector") -> Work:
    model = vpps.Model(seed=1)
    batch = build(model)  # type: ignore[operator]
    chosen = Configuration(schedule=schedule)
    found = inspect(model, batch, "cuda", device=name, configuration=chosen, optimizer=vpps.SGD(lr=0.1))
    return work_of(found.plan_made, panel=1)


@pytest.mark.host
class TestSheets:
    def test_are_of_every_device_that_is_planned_for(self) -> None:
        assert SHEETS.keys() == DEVICES.keys()

    @pytest.mark.parametrize("name", SHEETS)
    def test_give_peaks_that_fit_together(self, name: str) -> None:
        peaks = sheet_peaks(device_named(name.lower()))
        assert (peaks.name, peaks.n_vps) == (name, DEVICES[name].sms)
        assert peaks.flops == pytest.approx(peaks.flops_of_one * peaks.n_vps)
        assert peaks.read.nearest > peaks.read.farthest == SHEETS[name].memory
        clock = peaks.read.nearest / (64 * peaks.n_vps)
        assert 1.2e9 < clock < 2.7e9  # boost clocks of these: a slip of a digit would show
        assert "data sheet" in peaks.source

    def test_of_an_unknown_device_names_the_known_ones(self) -> None:
        with pytest.raises(HandleError, match=r"--device H300: expected one of T4, A100, .*RTX 5090"):
            device_named("H300")


@pytest.mark.host
class TestWorkOnAGpu:
    def test_takes_weights_in_once(self) -> None:
        """The chip holds all matrices of products: they are loaded, then multiplied without a byte from memory."""
        work = on_gpu(large, "H200")
        kinds = work.by(2)
        assert kinds["load"].weights == work.total.weights == 4 * 2 * ROWS * COLUMNS  # and the transpose
        assert kinds["held_matvec"].weights == 0
        assert work.total.gradients == 4 * ROWS  # of the bias; that of the matrix does not go to memory either
        step = 4 * (2 + 1) * ROWS * COLUMNS  # read, written, written into the transpose
        assert work.total.updates == step + 4 * 3 * ROWS
        assert work.barriers > 0
        assert floor_of(work, sheet_peaks(device_named("H200"))).seconds > work.barriers * 1e-6

    @pytest.mark.parametrize("schedule", ["vector", "paper"])
    @pytest.mark.parametrize("name", ["T4", "H200"])
    def test_is_the_same_for_every_device_and_schedule(self, name: str, schedule: str) -> None:
        work = on_gpu(chain, name, schedule)
        assert work.total.flops == on_gpu(chain, "A100").total.flops


@pytest.mark.cpu
class TestBesideTheCpu:
    def test_operations_of_products_are_the_same(self) -> None:
        gpu, cpu = on_gpu(Everything(), "H200"), counted(Everything(), vpps.SGD(lr=0.1), vps=2)
        assert PANEL > 1
        for phase in PHASES[:2]:
            mine, other = (w.of_phase(phase).flops for w in (gpu, cpu))
            assert mine == pytest.approx(other, rel=0.01)  # reductions of whole rows may be made more than once
        assert gpu.total.flops == pytest.approx(cpu.total.flops, rel=0.01)
