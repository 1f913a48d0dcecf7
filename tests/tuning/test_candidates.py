"""The space of configurations: what is in it, what cannot be had and why, what is the same twice."""

from __future__ import annotations

import pytest

import vpps
from vpps.compiler.passes import Passes
from vpps.engine.configuration import Configuration
from vpps.placement.onchip import MatrixSpec, known_device
from vpps.tuning.candidates import TunedChip, applied, checked, combined, cpu_axes, gpu_axes, n_combined, one_by_one

pytestmark = pytest.mark.host

BASE = Configuration(passes=Passes())
NONE = vpps.ChipOptions()
TREE = TunedChip((MatrixSpec("U", 1024, 512, 4, 2), MatrixSpec("Wo", 5, 256)), known_device("H200"))


class TestOnCpu:
    def test_are_virtual_processors_tiles_and_policies(self) -> None:
        axes = cpu_axes(("vps", "tile", "policy"), 2, 2, ["avx2-16x6", "avx2-24x4"])
        found = combined(BASE, axes)
        assert found[0] == BASE
        assert [c.describe() for c in found] == [
            "default",
            "policy depth",
            "tile avx2-24x4",
            "tile avx2-24x4, policy depth",
            "vps 1",
            "vps 1, policy depth",
            "vps 1, tile avx2-24x4",
            "vps 1, tile avx2-24x4, policy depth",
        ]

    @pytest.mark.parametrize(
        "cores, usual, counts",
        [
            (1, 1, []),
            (3, 2, [1, 3]),
            (8, 7, [1, 2, 3, 4, 5, 6, 8]),
            (16, 15, [1, 2, 4, 8, 12, 16]),
            (64, 64, [1, 2, 4, 8, 16, 32, 48, 63]),
        ],
    )
    def test_counts_include_all_cores_and_one_less(self, cores: int, usual: int, counts: list[int]) -> None:
        assert [change.get("vps") for change in cpu_axes(("vps",), cores, usual, [])["vps"]] == [None, *counts]

    def test_of_passes_only_when_asked(self) -> None:
        (candidate,) = one_by_one(BASE, cpu_axes(("passes",), 1, 1, []))[1:]
        assert candidate.passes == Passes(recompute=True)


class TestOnGpu:
    def test_are_all_rows_per_warp_of_the_paper(self) -> None:
        """Registers of a thread for slots, 256 - 64, over floats of a lane of the widest row: W^T, 1024 / 32."""
        slots = gpu_axes(("slots",), TREE, NONE)["slots"]
        assert [c["onchip"]["rpw"] for c in slots if "rpw" in c.get("onchip", {})] == list(range(1, 7))

    def test_are_tiles_and_tiers_of_the_largest(self) -> None:
        slots = gpu_axes(("slots",), TREE, NONE)["slots"]
        options = [change["onchip"] for change in slots[1:]]
        assert [o["tile"] for o in options if "tile" in o] == [8, 4, 2, 1]
        tiers = [o["tiers"] for o in options if "tiers" in o]
        planned = {held.name: held.tier for held in TREE.planned(vpps.ChipOptions()).held}
        assert {"U": "shared"} in tiers
        assert {"U^T": "atomic"} in tiers
        assert all(planned[name] != tier for change in tiers for name, tier in change.items())

    def test_that_cannot_be_had_say_why(self) -> None:
        axes = {"slots": gpu_axes(("slots",), TREE, NONE)["slots"], "blocks": [{}, {"onchip": {"blocks_per_sm": 2}}]}
        found, _ = checked(combined(BASE, axes), TREE)
        reasons = {c.configuration.describe(): c.reason for c in found if c.reason}
        assert "take 32 registers each of the 80 for slots" in reasons["rpw 3, blocks_per_sm 2"]
        assert "rows are fewer than VPs" in reasons["Wo in registers"]
        assert not {"default", "rpw 2, blocks_per_sm 2", "rpw 6", "tile 4", "U in shared"} & reasons.keys()

    def test_with_the_same_kernel_count_once(self) -> None:
        same = [applied(BASE, {"onchip": {"tile": TREE.planned(vpps.ChipOptions()).chip.tile}})]
        found, repeated = checked([BASE, *same], TREE)
        assert ([c.configuration for c in found], repeated) == ([BASE], 1)

    def test_for_evaluation_have_no_gradients(self) -> None:
        chip = TunedChip((MatrixSpec("U", 1024, 512, 4, 0, trained=False),), known_device("H200"), train=False)
        axes = gpu_axes(("slots", "gradients", "transposed"), chip, NONE)
        assert (axes["gradients"], axes["transposed"]) == ([{}], [{}])
        assert n_combined(axes) == len(axes["slots"])

    def test_keep_what_the_user_forces(self) -> None:
        forced = vpps.ChipOptions(tiers={"Wo": "L2"})
        changes = gpu_axes(("slots",), TREE, forced)["slots"]
        assert all("Wo" in c["onchip"]["tiers"] for c in changes if "tiers" in c.get("onchip", {}))


def test_a_change_of_options_leaves_the_others() -> None:
    base = Configuration(vps=3, onchip=vpps.ChipOptions(groups=2), passes=Passes(fusion=False))
    changed = applied(base, {"onchip": {"tile": 4}}, {"policy": "depth"}, {"passes": {"recompute": True}})
    assert changed == Configuration(
        vps=3,
        policy="depth",
        onchip=vpps.ChipOptions(groups=2, tile=4),
        passes=Passes(fusion=False, recompute=True),
    )
