"""Checks of compiled kernels on every architecture: weights are kept in registers, nothing spills, and no load bypasses
the coherent caches. The kernels are for real models, planned for a GPU of the architecture's generation.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import vpps
from tests.kernel.cache.builders import suffixes
from tests.kernel.programs import bilstm_tagger, rvnn, tree_lstm
from tests.kernel.sass import code_of, live_registers, noncoherent_loads
from tests.nvrtc import COMPILE_ALL, needs_nvrtc
from vpps.engine.options import Example
from vpps.kernel.nvrtc import KERNEL, Cubin, compile_cubin, compiler_version

pytestmark = [pytest.mark.nvrtc, needs_nvrtc]

Program = Callable[[], tuple[vpps.Model, Example]]

PROGRAMS: dict[str, Program] = {
    **{f"tree-lstm-{h}-{e}": lambda h=h, e=e: tree_lstm(h, e) for h in (128, 256, 384, 512) for e in (128, 256)},
    "bilstm-256": bilstm_tagger,
    "rvnn-512": rvnn,
}
# Every state width and every architecture at least once, with the plans that need the most registers: on sm_75 a window
# for chunks, on sm_90 the largest network. VPPS_TEST_ARCHS=all: all programs are compiled for every architecture.
SELECTION = {
    "sm_75": ("tree-lstm-256-256",),
    "sm_80": ("bilstm-256",),
    "sm_86": ("rvnn-512",),
    "sm_90": ("tree-lstm-512-256",),
    "sm_100": ("tree-lstm-256-256",),
    "sm_120": ("tree-lstm-128-256", "tree-lstm-384-128"),
}
COMPILED = [(arch, program) for arch, some in SELECTION.items() for program in (PROGRAMS if COMPILE_ALL else some)]


def cubin_of(kernel: vpps.Specialized) -> Cubin:
    """The compiled cubin, from the cache."""
    assert kernel.resources is not None
    return compile_cubin(kernel.source, kernel.arch, kernel.resources.cached_registers)


def test_the_selection_has_every_width_of_states() -> None:
    selected = {program for some in SELECTION.values() for program in some}
    assert {program.rpartition("-")[0] for program in selected} == {program.rpartition("-")[0] for program in PROGRAMS}


@pytest.mark.parametrize("arch, program", COMPILED)
def test_nothing_spills(arch: str, program: str, record_property: Callable[[str, object], None]) -> None:
    model, example = PROGRAMS[program]()
    kernel = vpps.specialize(model, example, arch=arch, passes=vpps.Passes())
    cubin = cubin_of(kernel)
    code = code_of(cubin)
    live = live_registers(code, KERNEL)
    found, onchip = cubin.resources, kernel.arrangement.onchip
    assert (found.spill_stores, found.spill_loads, found.stack) == (0, 0, 0)
    assert onchip.chip.registers == found.cached_registers <= live <= found.registers <= 255
    # Neither the kernel nor the compiler bypasses the coherent caches.
    assert noncoherent_loads(code) == []
    assert cubin.warnings == ()
    assert found.shared_bytes + kernel.spec.chip.shared_bytes <= onchip.device.shared_per_block
    reached = (
        f"stepped down {kernel.stepped_down} times, "
        f"{onchip.chip.registers} of {live} live of {found.registers} registers, "
        f"{found.code_bytes // 1024} KiB of code; {', '.join(f'{held.name} {held.tier}' for held in onchip.held)}"
    )
    record_property("reached", reached)
    print(f"{program} on {arch}: {reached}")


def test_a_kernel_that_spills_holds_less_in_registers() -> None:
    """If weights occupy 192 registers, too few are left for sums."""
    kernel = vpps.specialize(*rvnn(512), ownership="round-robin", sms=11, passes=vpps.Passes())
    assert kernel.stepped_down > 0
    assert kernel.spec.chip.registers < 192
    assert kernel.resources is not None
    assert (kernel.resources.spill_stores, kernel.resources.stack) == (0, 0)


def test_what_spills_with_nothing_to_give_up_is_an_error_that_names_it() -> None:
    model = vpps.Model(seed=1)
    W = model.parameter("W", (256, 512))

    @vpps.cell
    def node(a: vpps.Expression, b: vpps.Expression) -> vpps.Expression:
        return vpps.tanh(W @ vpps.concat([a, b]))

    graph = vpps.Graph()
    x = graph.input([0.5] * 256)
    with pytest.raises(vpps.SpillError, match="spills with 192 registers of weights; leave rpw=12 to the planner"):
        vpps.specialize(
            model,
            (graph, vpps.sum(node(node(x, x), x))),
            ownership="round-robin",
            rpw=12,
            clip_norm=1.0,
            passes=vpps.Passes(),
        )


class TestSpecialize:
    @pytest.fixture
    def fresh_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("VPPS_CACHE_DIR", str(tmp_path / "cache"))
        return tmp_path / "cache"

    def test_keeps_the_kernel_and_what_it_takes_beside_it(self, fresh_cache: Path) -> None:
        model, example = tree_lstm(8, embedding=8)
        first = vpps.specialize(model, example, sms=2)
        again = vpps.specialize(model, example, sms=2)
        assert again.binary == first.binary
        assert again.resources == first.resources  # even compile_seconds: nothing was compiled
        assert suffixes(fresh_cache) == [".cu", ".cubin", ".json"]
        assert first.binary.with_suffix(".cu").read_text() == first.source

    def test_explains_what_only_the_compiler_knows(self) -> None:
        model, example = tree_lstm(8, embedding=8)
        kernel = vpps.specialize(model, example, sms=2, optimizer=vpps.Adam())
        text, found = kernel.explain(), kernel.resources
        assert max(map(len, text.splitlines())) <= 110
        text = " ".join(text.split())
        assert f"for sm_90 by {compiler_version()} in {found.compile_seconds:.1f} s: {found.registers} reg" in text
        assert f"{found.code_bytes / 1024:.0f} KiB of code, {len(kernel.spec.instructions)} instructions" in text
        assert "nothing spilled" in text
        assert "one per step; 2 blocks of 256 threads" in text

    def test_without_an_example_or_training_knows_what_may_be_needed(self) -> None:
        model, example = tree_lstm(8, embedding=8)
        kernel = vpps.specialize(model, sms=2, optimizer=vpps.Adam())
        assert {"held_matvec", "outer_tiles", "step_tiles.adam", "update_rows.adam"} <= kernel.spec.instructions
        assert not {"tanh", "sigmoid", "cross_entropy"} & kernel.spec.instructions
        assert {held.parts for held in kernel.arrangement.onchip.held} == {1}
        kernel = vpps.specialize(model, example, sms=2, train=False)
        assert not any(held.transposed for held in kernel.arrangement.onchip.held)
        assert not any("update" in name or "grad" in name for name in kernel.spec.instructions)
