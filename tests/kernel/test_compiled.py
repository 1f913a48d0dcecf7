"""Proofs by compilation, on every architecture: weights stay in registers, nothing spills, nothing is loaded past
the coherent caches. The kernels are those of real models, planned for a GPU of the architecture's generation.
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
from vpps.kernel import nvrtc
from vpps.kernel.nvrtc import KERNEL, Cubin, compile_cubin, compiler_version

pytestmark = [pytest.mark.nvrtc, needs_nvrtc]

Program = Callable[[], tuple[vpps.Model, Example]]

PROGRAMS: dict[str, Program] = {
    **{f"tree-lstm-{h}-{e}": lambda h=h, e=e: tree_lstm(h, e) for h in (128, 256, 384, 512) for e in (128, 256)},
    "bilstm-256": bilstm_tagger,
    "rvnn-512": rvnn,
}
# Every width of states and every architecture at least once, with the arrangements that press most on the registers: on
# sm_75 all 255 of them, on sm_90 the largest network. VPPS_TEST_ARCHS=all: every architecture compiles every program.
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
    """What was compiled, from the cache."""
    assert kernel.resources is not None
    return compile_cubin(kernel.source, kernel.arch, kernel.resources.cached_registers)


def test_the_selection_has_every_width_of_states() -> None:
    selected = {program for some in SELECTION.values() for program in some}
    assert {program.rpartition("-")[0] for program in selected} == {program.rpartition("-")[0] for program in PROGRAMS}


@pytest.mark.parametrize("arch, program", COMPILED)
def test_weights_stay_in_registers(arch: str, program: str, record_property: Callable[[str, object], None]) -> None:
    model, example = PROGRAMS[program]()
    kernel = vpps.specialize(model, example, arch=arch, passes=vpps.Passes())
    cubin = cubin_of(kernel)
    code = code_of(cubin)
    live = live_registers(code, KERNEL)
    found, onchip = cubin.resources, kernel.arrangement.onchip
    assert (found.spill_stores, found.spill_loads, found.stack) == (0, 0, 0)
    assert found.cached_registers == onchip.chip.registers > 0
    assert onchip.chip.registers <= live <= found.registers <= 255
    # The kernel asks for no load past the coherent caches, and the compiler made none of its own.
    assert noncoherent_loads(code) == []
    assert cubin.warnings == ()
    assert found.shared_bytes + kernel.spec.chip.shared_bytes <= onchip.device.shared_per_block
    reached = (
        f"tile {onchip.chip.tile}, gradients {onchip.gradients}, stepped down {kernel.stepped_down} times, "
        f"{onchip.chip.registers} of {live} live of {found.registers} registers, "
        f"{found.code_bytes // 1024} KiB of code; not in registers: "
        + (", ".join(f"{held.name} {held.tier}" for held in onchip.held if held.tier != "registers") or "nothing")
    )
    record_property("reached", reached)
    print(f"{program} on {arch}: {reached}")


def test_a_large_tree_lstm_begins_with_what_does_not_spill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its first arrangements would: 512 units with words of 256."""
    tried = []

    def compile_and_note(source: str, arch: str, cached: int) -> Cubin:
        tried.append(compile_cubin(source, arch, cached))
        return tried[-1]

    monkeypatch.setattr(nvrtc, "compile_cubin", compile_and_note)
    model, example = PROGRAMS["tree-lstm-512-256"]()
    kernel = vpps.specialize(model, example, passes=vpps.Passes())
    assert kernel.stepped_down > 0
    assert [cubin.resources.spill_stores for cubin in tried] == [0]


def test_a_large_tree_lstm_keeps_its_recurrent_weights_on_the_chip() -> None:
    """However far the planner has to step down: 512 units on an H200 is what registers hold at most."""
    model, example = PROGRAMS["tree-lstm-512-128"]()
    onchip = vpps.specialize(model, example, arch="sm_90", passes=vpps.Passes()).arrangement.onchip
    assert {onchip.of(f"tree_lstm/{name}").tier for name in ("U", "U^T", "W", "W^T")} == {"registers"}


def test_what_spills_with_nothing_to_give_up_is_an_error_that_names_it() -> None:
    model = vpps.Model(seed=1)
    W = model.parameter("W", (256, 512))

    @vpps.cell
    def node(a: vpps.Expression, b: vpps.Expression) -> vpps.Expression:
        return vpps.tanh(W @ vpps.concat([a, b]))

    graph = vpps.Graph()
    x = graph.input([0.5] * 256)
    with pytest.raises(vpps.SpillError) as caught:
        vpps.specialize(
            model,
            (graph, vpps.sum(node(node(x, x), x))),
            ownership="round-robin",
            rpw=8,
            tile=8,
            tiers={"W": "registers", "W^T": "registers"},
            clip_norm=1.0,
            passes=vpps.Passes(),
        )
    for words in ("rpw=8", "tile=8", "tiers={'W': 'registers'", "tiers={'W': 'shared'}"):
        assert words in str(caught.value)


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
        assert again.resources == first.resources  # compile_seconds too: nothing was compiled
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
        assert kernel.arrangement.onchip.gradients == "none"
        assert not any("update" in name or "grad" in name for name in kernel.spec.instructions)
