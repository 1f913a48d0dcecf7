"""Kernels made ahead of time: what `specialize` plans and refuses; handles compile the same kernels."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import vpps
from tests.kernel.programs import tree_lstm
from vpps.engine.ahead import gpu_for, specs
from vpps.engine.options import Example
from vpps.placement.onchip import DEVICES, known_device
from vpps.placement.update import Update
from vpps.reference import Reference, weights_of

host = pytest.mark.host


def small() -> tuple[vpps.Model, Example]:
    return tree_lstm(8, embedding=8)


@host
class TestDevice:
    @pytest.mark.parametrize(
        "arch, name, sms",
        [
            ("sm_75", "T4", 40), ("sm_80", "A100", 108), ("sm_86", "RTX 3090", 82), ("sm_89", "RTX 4090", 128),
            ("sm_90", "H200", 132), ("sm_90a", "H200", 132), ("sm_100", "B200", 148), ("sm_120", "RTX 5090", 170),
        ],
    )  # fmt: skip
    def test_is_one_of_the_architecture(self, arch: str, name: str, sms: int) -> None:
        gpu, compiled_for = gpu_for("cuda", None, arch, None)
        assert (gpu.name, gpu.sms, compiled_for) == (name, sms, arch)

    def test_says_for_what_to_compile(self) -> None:
        for gpu in DEVICES.values():
            assert gpu_for("cuda", gpu.name, None, None) == (gpu, f"sm_{gpu.sm}")
        assert gpu_for("cuda", None, None, 66)[0] == dataclasses.replace(known_device("H200"), sms=66)

    def test_of_an_architecture_between_two_is_like_one_of_its_generation(self) -> None:
        gpu, _ = gpu_for("cuda", None, "sm_87", None)
        assert (gpu.sm, gpu.name) == (87, "sm_87 like RTX 4090")

    def test_runs_code_for_older_ones_of_its_generation(self) -> None:
        assert gpu_for("cuda", "RTX 4090", "sm_80", None)[1] == "sm_80"


@host
class TestInstructions:
    def names(self, update: Update | None) -> frozenset[str]:
        model, example = small()
        gpu = dataclasses.replace(known_device("H200"), sms=2)
        return next(specs(model, example, gpu, 2, update, 0, vpps.ChipOptions()))[0].instructions

    def test_are_those_of_training_and_inference(self) -> None:
        training, inference = self.names(Update(vpps.SGD(lr=0.1), 1, 1, None)), self.names(None)
        assert inference < training
        assert "update_rows.sgd" in training
        assert "squares_rows" not in training

    def test_are_those_of_the_optimizer_and_of_clipping(self) -> None:
        names = self.names(Update(vpps.Adam(), 1, 1, 5.0))
        assert {"update_rows.adam", "squares_matrix", "squares_rows", "clip"} <= names
        assert not any(name.endswith(".sgd") for name in names)

    def test_are_those_that_a_launch_has_for_where_its_matrices_are(self) -> None:
        """The step adds partial tiles, and the losses' mean has no backward."""
        model, (graph, loss) = tree_lstm(256)
        update = Update(vpps.Adam(), 1, 1, None)
        options = vpps.ChipOptions(groups=1)
        example = graph, loss * 0.5
        found = specs(model, example, known_device("H200"), 132, update, 2, options, passes=vpps.Passes())
        names = next(found)[0].instructions
        assert {name for name in names if "mat" in name or "tiles" in name} == {
            "held_matvec", "matvec", "outer_tiles", "step_tiles.adam",
        }  # fmt: skip
        assert "mul" in names
        assert not any(name.startswith("mul.grad") for name in names)


@pytest.mark.cpu
def test_on_cpu_one_kernel_serves_all_models() -> None:
    model, example = small()
    kernel = vpps.specialize(model, example, target="cpu", optimizer=vpps.Adam(), vps=2)
    with vpps.Handle(model, target="cpu", example=example) as handle:
        assert kernel.source == handle.source()
        handle.fb(*example)
        assert np.isfinite(handle.sync_get_latest_loss())
    assert kernel.resources is None
    assert kernel.spec.instructions > {"matvec", "tanh", "update_rows.adam"}
    assert f"the example takes {len(kernel.spec.instructions)} of its" in " ".join(kernel.explain().split())
    without = vpps.specialize(model, target="cpu")
    assert (without.source, without.binary) == (kernel.source, kernel.binary)


@pytest.mark.cpu
@pytest.mark.parametrize("precision", ["float32", {"*": "bf16", "output/W": "float32"}])
def test_explain_on_cpu_lists_every_parameter_and_what_it_takes(precision: str | dict[str, str]) -> None:
    model, example = small()
    with vpps.Handle(model, vpps.Adam(), target="cpu", vps=2, ema=0.9, precision=precision) as handle:
        text = handle.explain()
        handle.fb(*example)
        again = handle.explain()
        assert again.startswith(text + "peak  ")  # then come memory and cells; everything else is unchanged
        assert {"cell TreeLSTMSentiment.leaf", "cell TreeLSTMSentiment.inner"} <= set(again.splitlines())
        assert handle.explain() == again
        memory = handle.memory
    for p in model:
        assert any(line.startswith(p.name) for line in text.splitlines())
    for words in ("cpu (", "2 virtual processors (threads)", "moments  average", "3 matrices, 3 vectors, 1 table"):
        assert words in text
    total = memory.weights + memory.gradients + memory.moments + memory.averages
    stated = float(text.split("1 table: ")[1].split(" KiB")[0]) * 1024
    assert stated == pytest.approx(total, rel=0.05, abs=2048)  # arrays begin at cache lines
    assert max(map(len, text.splitlines())) <= 110
    rounded = "precision      bf16, of products with tree_lstm/W, tree_lstm/U\n"
    assert (rounded in text) == (precision != "float32")
    assert ("\npairs          of bf16, for products, lie beside float32 weights" in text) == (precision != "float32")


@pytest.mark.simt
class TestHandle:
    def test_with_an_example_compiles_nothing_more(self) -> None:
        model, example = small()
        with vpps.Handle(model, target="simt", vps=2, example=example) as handle:
            source = handle.source()
            assert "vpps_kernel" in source
            assert handle.memory.peak == 0  # before any launch
            handle.fb(*example)
            handle.forward(example[0], [example[1]])
            assert handle.source() == source
        kernel = vpps.specialize(model, example, target="simt", sms=2)
        assert kernel.source == source

    def test_explains_itself_before_and_after_the_first_graph(self) -> None:
        model, example = small()
        with vpps.Handle(model, target="simt", vps=2) as handle:
            before = handle.explain()
            assert "not yet: it will be for the first fb" in before
            handle.fb(*example)
            text = handle.explain()
        for words in ("tree_lstm/U", "shared", "emulated GPU: 2 groups of 1 block", "one per step; 2 blocks"):
            assert words in text
        assert max(map(len, text.splitlines())) <= 110
        with pytest.raises(vpps.HandleError, match="closed"):
            handle.explain()

    def test_without_training_compiles_for_inference(self) -> None:
        model, (graph, loss) = small()
        with vpps.Handle(model, target="simt", vps=2, train=False, example=(graph, loss)) as handle:
            source = handle.source()
            assert "update" not in source.split("// ---- the kernel")[1]
            (value,) = handle.forward(graph, [loss])
            assert handle.source() == source
        assert value == pytest.approx(Reference(graph, weights_of(model)).value(loss), rel=1e-4)
