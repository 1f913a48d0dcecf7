"""Timelines of thread blocks: in the emulator, and on a simulated GPU with queued launches."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import vpps
from tests.classifier import CLASSES, EMBEDDING, HIDDEN, new
from tests.kernel.programs import tree_lstm
from tests.nvrtc import COMPILE_ALL, needs_nvrtc
from tests.report.test_timeline import VPS, WEIGHTS, bytes_of, executed, recording
from tests.runtime import fake_cuda
from tests.runtime.fake_cuda import FakeCuda
from vpps.kernel.nvrtc import compile_cubin
from vpps.kernel.render import TIMELINE_LINE, render_cuda
from vpps.placement.onchip import ChipOptions
from vpps.runtime.cuda import CudaMachine
from vpps.runtime.stamps import StampedRecording
from vpps.script.instructions import Flag
from vpps.script.slices import share, unit_owners

SHAPES = {"W": (HIDDEN, EMBEDDING), "U": (HIDDEN, HIDDEN), "Wo": (CLASSES, HIDDEN)}


@pytest.mark.simt
class TestBytes:
    @pytest.mark.parametrize("ownership", ["aligned", "round-robin"])
    def test_are_those_of_the_weights(self, ownership: str) -> None:
        """Every weight is loaded once, and so is its transpose if backward needs it. The update reads and writes the
        weight and two moments, and writes the transpose; it reads the gradient or adds partial tiles."""
        net = new()
        with recording(net, "simt", onchip=ChipOptions(ownership=ownership)) as handle:
            net.train(handle, range(1))
            timeline = handle.timeline()
        loads = {d.fields["matrix"]: d for d in executed(timeline, 0) if d.instruction.name == "load"}
        sizes = [d.width * int(d.fields["columns"]) for d in loads.values()]
        assert sum(bytes_of(timeline, "Load")) == 4 * sum(sizes) > 0
        records, forms = timeline.records, ("UpdateMatrix", "StepTiles", "UpdateVector", "UpdateRows")
        of = {form: records[timeline.forms == form]["bytes"].sum() for form in forms}
        steps = [d for d in executed(timeline, 0) if d.instruction.form in forms[:2]]
        assert len(steps) == len(SHAPES)
        assert of["UpdateMatrix"] + of["StepTiles"] == 4 * sum(
            (7 + (d.instruction.form == "UpdateMatrix")) * d.width * int(d.fields["columns"]) for d in steps
        )
        assert of["UpdateVector"] == 4 * 7 * (HIDDEN + CLASSES)
        assert of["UpdateRows"] == 4 * 7 * EMBEDDING * len(timeline.plan.tables[net.model["words"]].rows)

    def test_are_those_of_memory_where_the_chip_holds_nothing(self) -> None:
        net = new()
        tiers = {name: "L2" for m in SHAPES for name in (m, f"{m}^T")}
        with recording(net, "simt", onchip=ChipOptions(tiers=tiers)) as handle:
            net.train(handle, range(1))
            timeline = handle.timeline()
        assert not bytes_of(timeline, "Load").any()
        for vp in range(VPS):
            floats = 0
            for d in executed(timeline, vp):
                if d.instruction.form == "Matvec":
                    low, high = share(d.n, vp, VPS) if d.flags & Flag.ROWS else (0, d.n)
                    units = d.width if d.flags & Flag.ROWS else int((unit_owners(d.width, d.parts, 1, VPS) == vp).sum())
                    columns = int(d.fields["columns"])
                    at_once = 4 if columns >= 16 else 1  # vectors that a row multiplies at once
                    floats += units * -(-(high - low) // at_once) * columns
            assert bytes_of(timeline, *WEIGHTS)[vp] == 4 * floats > 0


@pytest.mark.simt
class TestQueue:
    def test_gives_the_launch_before_while_one_runs(self, fake: FakeCuda) -> None:
        net = new()
        with recording(net, "cuda") as handle:
            found = []
            for k in range(4):
                handle.fb(*net.batch(k, longest=3 + 5 * k))  # each graph and its memory are larger
                if k:
                    found.append(handle.timeline(wait=False))
            assert len(handle._engine._flights) == 1
            found.append(handle.timeline())
        sizes = [len(t.records) for t in found]
        assert [len(executed(t, 0)) * VPS for t in found] == sizes
        assert len(set(sizes)) > 1
        assert all(before.end <= after.start for before, after in pairwise(found))


@pytest.mark.host
def test_memory_for_records_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda.install(monkeypatch)
    machine = CudaMachine(4, timeline=True)
    assert machine.record(100).capacity == 100
    most = machine.record(10**9)
    assert isinstance(most, StampedRecording)
    assert 4 * most.words < 1.1 * 2**28
    machine.close()


@pytest.mark.simt
def test_the_plain_kernel_is_the_recording_one_without_its_lines() -> None:
    net = new()
    with recording(net, "simt") as handle:
        net.train(handle, range(1))
        spec, source = handle._engine.machine.spec, handle._engine.machine.source
    assert spec is not None
    plain = render_cuda(spec)
    assert source == render_cuda(spec.recording(True))
    assert "timeline" not in plain.lower()
    assert "clock64" not in plain
    rest = iter(source.splitlines())
    assert all(line in rest for line in plain.splitlines()), "a line of the plain kernel is missing in the other"
    assert sum(line.lstrip().startswith(TIMELINE_LINE) for line in source.splitlines()) > 10


@pytest.mark.nvrtc
@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"] if COMPILE_ALL else ["sm_75"])
def test_recording_costs_no_weight_its_register(arch: str, record_property: Any) -> None:
    """The kernel with the most weights that fit without a timeline also fits with one, on all GPU generations. The
    generation with the fewest free registers is always compiled."""
    model, example = tree_lstm(256, 256)
    kernel = vpps.specialize(model, example, arch=arch, passes=vpps.Passes())
    plain = kernel.resources
    assert plain is not None
    spec = kernel.spec.of(kernel.vps).recording(True)
    found = compile_cubin(render_cuda(spec), arch, spec.chip.registers).resources
    assert (found.spill_stores, found.spill_loads, found.stack) == (0, 0, 0)
    assert found.registers <= 255
    assert found.code_bytes < 1.15 * plain.code_bytes
    record_property("code_bytes", [plain.code_bytes, found.code_bytes])
