"""Checkpoints: complete, atomic, checked; a resumed run is bit-identical to the uninterrupted run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vpps
from tests.classifier import Classifier, new, same_bits
from vpps.model.optim import OptimizerState
from vpps.model.state import AccumulatedGradients, Averages


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def small(seed: int = 5) -> vpps.Model:
    """Return a model with every kind of parameter."""
    model = vpps.Model(seed=seed)
    with model.scope("encoder"):
        model.parameter("W", (3, 4))
        model.parameter("b", (3,), init="normal", trainable=False)
    model.lookup("words", (5, 4))
    model.lookup("matrices", (2, 3, 3))
    model.parameter("scale", (), init=0.5)
    return model


@pytest.mark.host
class TestRoundTrip:
    def test_load_gives_the_model_back(self, path: Path) -> None:
        """Load also restores the training state."""
        model = trained()
        model.save(path)
        loaded = vpps.Model.load(path)
        assert same_bits(model.numpy(), loaded.numpy())
        assert (loaded.seed, loaded.step) == (5, 2)
        for p, q in zip(model, loaded, strict=True):
            assert (type(p), p.name, p.shape, p.trainable) == (type(q), q.name, q.shape, q.trainable)
        for name in ("optimizer_state", "accumulated", "averages"):
            np.testing.assert_equal(vars(getattr(loaded, name)), vars(getattr(model, name)))

    def test_restore_fills_the_model_in_place(self, path: Path) -> None:
        """Later declarations give the same weights as in the saved run, whose seed is in the file."""
        model, other = small(seed=99), small()
        for p in other:
            p.assign(p.numpy() + 1)
        other.save(path)
        W = model["encoder/W"]
        model.restore(path)
        assert same_bits(model.numpy(), other.numpy())
        assert model["encoder/W"] is W
        new, expected = (m.parameter("new", (4,), "normal").numpy() for m in (model, other))
        assert np.array_equal(new, expected)

    def test_metadata_is_the_users_and_kept_until_replaced(self, path: Path) -> None:
        metadata = {"vpps": "not ours", "epoch": "3", "": "ü"}
        small().save(path, metadata=metadata)
        loaded = vpps.Model.load(path)
        assert loaded.metadata == metadata
        loaded.save(str(path))  # paths may be strings
        assert vpps.Model.load(str(path)).metadata == metadata
        loaded.save(path, metadata={})
        assert vpps.Model.load(path).metadata == {}

    def test_the_file_is_safetensors_that_others_can_read(self, path: Path) -> None:
        model = small()
        model.save(path)
        tensors = load_file(path)
        assert np.array_equal(tensors["weight/encoder/W"], model["encoder/W"].numpy())
        vpps.Model(seed=3).save(path)  # without parameters
        assert vpps.Model.load(path).seed == 3


@pytest.mark.cpu
@pytest.mark.parametrize("rule", [None, vpps.Adam(lr=0.05), vpps.Momentum(lr=0.05)], ids=["none", "same", "other"])
def test_an_optimizer_goes_on_or_starts_afresh(path: Path, rule: vpps.Optimizer | None) -> None:
    """The file has weights and no moments, the same optimizer's moments, or another optimizer's."""
    net = new()
    net.model.save(path)
    with vpps.Handle(net.model, vpps.Adam(lr=0.05)) as handle:
        net.train(handle, range(3))
        if rule is None:
            net.model.restore(path)
        net.model.save(path)
        going = net.train(handle, range(3)) if isinstance(rule, vpps.Adam) else None
    resumed, witness = Classifier(vpps.Model.load(path)), new()
    for p in witness.model:
        p.assign(resumed.model[p.name].numpy())
    with vpps.Handle(resumed.model, rule or vpps.Adam(lr=0.05)) as handle:
        found = resumed.train(handle, range(3))
    with vpps.Handle(witness.model, rule or vpps.Adam(lr=0.05)) as handle:
        afresh = witness.train(handle, range(3))
    assert found == (going or afresh)
    assert same_bits(resumed.model.numpy(), net.model.numpy() if going else witness.model.numpy())


@pytest.mark.host
class TestWriting:
    def test_a_full_disk_leaves_the_old_file_and_no_other(self, path: Path) -> None:
        """Covers both system errors: the write fails, or closing the file fails. Other failures, and Ctrl-C:
        tests/test_files.py, tests/fuzz/interruptions.py."""
        resource = pytest.importorskip("resource")
        model = small()
        model.save(path)
        old = path.read_bytes()
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))  # Python ignores SIGXFSZ: write fails with EFBIG
        try:
            with pytest.raises(vpps.CheckpointError, match="cannot be written"):
                model.save(path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert path.read_bytes() == old
        assert list(path.parent.iterdir()) == [path]

    def test_a_missing_folder_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(vpps.CheckpointError, match="nowhere"):
            small().save(tmp_path / "nowhere" / "model.safetensors")

    def test_the_file_has_the_users_permissions(self, path: Path) -> None:
        before = os.umask(0o027)
        try:
            small().save(path)
        finally:
            os.umask(before)
        assert path.stat().st_mode & 0o777 == 0o640

    @pytest.mark.parametrize("what", ["weight", "moment"])
    def test_a_model_that_diverged_does_not_overwrite_a_good_checkpoint(self, path: Path, what: str) -> None:
        model = small()
        model.save(path)
        old = path.read_bytes()
        if what == "weight":
            model["encoder/W"].host[0, 0] = np.nan
        else:
            model.optimizer_state = OptimizerState("momentum", {"m": {"encoder/W": np.full((3, 4), np.inf, "f4")}})
        with pytest.raises(vpps.CheckpointError) as caught:
            model.save(path)
        assert "encoder/W" in str(caught.value)
        assert path.read_bytes() == old


@pytest.mark.host
class TestReading:
    def test_every_flipped_bit_is_noticed(self, path: Path) -> None:
        trained().save(path, metadata={"epoch": "3"})
        good = path.read_bytes()
        rng = np.random.default_rng(0)
        header = 8 + int.from_bytes(good[:8], "little")
        positions = [*range(8), *rng.integers(8, header, 300), *rng.integers(header, len(good), 300)]
        for position in positions:
            bad = bytearray(good)
            bad[position] ^= 1 << int(rng.integers(8))
            path.write_bytes(bad)
            if json_equal(good, bytes(bad)):
                continue  # white space or an escape: nothing was lost
            self.refused(path)

    @pytest.mark.parametrize(
        "content",
        [b"", b"PK\x03\x04", b"\x00" * 64, b"#!/bin/sh\necho hello\n", b"\xff" * 64, *(1, 7, 8, 100, -1, -100)],
        ids=repr,
    )
    def test_another_file_is_refused_and_a_part_of_one(self, path: Path, content: bytes | int) -> None:
        small().save(path)
        path.write_bytes(path.read_bytes()[:content] if isinstance(content, int) else content)
        self.refused(path)

    @pytest.mark.parametrize("name, words", [("missing", "no such checkpoint"), (".", "")])
    def test_a_missing_file_and_a_folder_are_refused(self, tmp_path: Path, name: str, words: str) -> None:
        assert words in self.refused(tmp_path / name)

    def test_a_foreign_safetensors_file_is_refused(self, path: Path) -> None:
        save_file({"weight/scale": np.ones(3, np.float32)}, path)
        assert "not a vpps checkpoint" in self.refused(path)

    @staticmethod
    def refused(path: Path) -> str:
        """Return the message with which `load` and `restore` refuse a file. Both name it and leave the model as is."""
        model = small()
        model.step = 3
        before = model.numpy()
        with pytest.raises(vpps.CheckpointError) as restored:
            model.restore(path)
        assert same_bits(model.numpy(), before)
        assert (model.step, model.seed, model.metadata) == (3, 5, {})
        with pytest.raises(vpps.CheckpointError) as loaded:
            vpps.Model.load(path)
        assert str(path) in str(loaded.value)
        assert str(restored.value) == str(loaded.value)
        return str(loaded.value)


def trained() -> vpps.Model:
    """Return the small model after two steps of Adam and an accumulating call, as it is in a checkpoint."""
    model = small()
    model.step = 2
    halves = {p.name: np.asarray(p.numpy() * 0.5) for p in model if p.trainable}
    tables = {name: np.zeros(len(halves[name]), np.int64) for name in ("words", "matrices")}
    model.optimizer_state = OptimizerState("adam", {"m": halves, "v": halves}, dict.fromkeys(halves, 2))
    model.accumulated = AccumulatedGradients(1, halves | {"words": np.ones((2, 4), "f4")}, {"words": np.array([1, 3])})
    model.averages = Averages(0.9, 2, halves, tables)
    return model


def rewrite(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    """Rewrite a checkpoint, checksum included, after changing its tensors or its description."""
    from safetensors import safe_open

    from vpps.model.checkpoint import sealed

    with safe_open(path, framework="numpy") as f:
        metadata = f.metadata()
        tensors = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118
    description = json.loads(metadata["vpps"])
    change(tensors, description)
    save_file(tensors, path, sealed(tensors, {"vpps": json.dumps(description)}))


def json_equal(a: bytes, b: bytes) -> bool:
    """Return True if two safetensors files differ only in the spelling of their header."""
    n, m = (int.from_bytes(x[:8], "little") for x in (a, b))
    try:
        return n == m and a[8 + n :] == b[8 + m :] and json.loads(a[8 : 8 + n]) == json.loads(b[8 : 8 + m])
    except ValueError:
        return False


Change = Callable[[dict[str, Any], dict[str, Any]], object]
FORGED = (
    [(name, value) for name in ("step", "since") for value in (None, True, "1", -1, 1.5, 2**70, [1])]
    + [("counts", value) for value in (None, 1, [1], {"words": -1}, {"words": True}, {"words": 2**70})]
    + [("seed", value) for value in (None, True, "1", 1.5, [1])]
    + [("optimizer", value) for value in (True, 1, [], {})]
    + [("moments", value) for value in (None, {}, {"v": ["words"]}, {"m": 3}, [])]
    + [("history", value) for value in (True, 1, {}, [], {"cells": 1, "orders": []}, {"cells": [[]], "orders": []})]
    + [("policy", value) for value in (True, 1, "fsm", [{}], [[1]])]
)
PARAMETERS: list[dict[str, Any]] = [
    {"kind": None}, {"kind": "table"}, {"trainable": 1}, {"trainable": "no"}, {"name": 3}, {"name": "other"},
]  # fmt: skip
TENSORS = "weight/scale", "weight/encoder/W", "moment/v/words", "gradient/scale", "average_current/words"
NUMBERS = "is not a finite float32 array, or has an inconsistent shape"
DAMAGED: dict[str, tuple[Change, str]] = {
    **{f"no {key}": (lambda ts, d, key=key: ts.pop(key), key.rsplit("/")[-1]) for key in TENSORS},
    **{
        f"no {key}": (lambda ts, d, key=key: d.pop(key), "damaged")
        for key in ("format", "seed", "step", "optimizer", "moments", "parameters")
    },
    "a later format": (lambda ts, d: d.update(format=99), "99"),
    **{f"{name}={value}": (lambda ts, d, n=name, v=value: d.update({n: v}), "damaged") for name, value in FORGED},
    **{str(change): (lambda ts, d, c=change: d["parameters"][0].update(c), "damaged") for change in PARAMETERS},
    **{
        f"{key} {why}": (lambda ts, d, key=key, other=other: ts.update({key: other}), f"damaged: '{key}' {NUMBERS}")
        for key, why, other in (
            ("moment/m/words", "of another shape", np.ones((9, 9), "f4")),  # it would overwrite its neighbour
            ("weight/scale", "of another type", np.ones((), "f8")),
            ("weight/encoder/W", "not finite", np.full((3, 4), np.nan, "f4")),
            ("moment/v/words", "not finite", np.full((5, 4), np.nan, "f4")),
            ("average/words", "of another shape", np.zeros((3, 3), "f4")),
            ("gradient/scale", "of another shape", np.zeros(3, "f4")),
        )
    },
    "averages of another type": (
        lambda ts, d: ts.update({"average_current/words": np.zeros(5, "f4")}), "is not a finite int64 array"
    ),
    "averages of the future": (lambda ts, d: ts.update({"average_current/words": np.full(5, 9)}), "damaged"),
    "decay 1": (lambda ts, d: d["averages"].update(decay=1.0), "damaged"),
    "no updates of averages": (lambda ts, d: d["averages"].pop("updates"), "damaged"),
    "rows beyond a table": (lambda ts, d: ts.update({"gradient_rows/words": np.array([1, 5])}), "damaged"),
    "rows in no order": (lambda ts, d: ts.update({"gradient_rows/words": np.array([3, 1])}), "damaged"),
    "no calls": (lambda ts, d: d["accumulated"].update(calls=None), "damaged"),
}  # fmt: skip


@pytest.mark.host
@pytest.mark.parametrize("damage", DAMAGED)
def test_what_is_damaged_or_forged_is_refused(path: Path, damage: str) -> None:
    """The checksum is correct, so the change was deliberate, or made by a faulty program."""
    trained().save(path)
    change, words = DAMAGED[damage]
    rewrite(path, change)
    assert words in TestReading.refused(path)


@pytest.mark.host
@pytest.mark.parametrize("change", ["twice", "no name", "no kind", "a table without rows"])
def test_parameters_that_no_model_has_are_refused(path: Path, change: str) -> None:
    def forge(tensors: dict[str, Any], description: dict[str, Any]) -> None:
        first = description["parameters"][0]
        match change:
            case "twice":
                description["parameters"].append(first)
            case "no name":
                tensors["weight/"] = tensors[f"weight/{first['name']}"]
                first["name"] = ""
            case "no kind":
                del first["kind"]
            case _:
                tensors[f"weight/{first['name']}"] = np.zeros((), np.float32)
                first["kind"] = "lookup"

    small().save(path)
    rewrite(path, forge)
    with pytest.raises(vpps.CheckpointError, match="damaged"):
        vpps.Model.load(path)


@pytest.mark.host
@pytest.mark.parametrize("dtype, width", [("BF16", 2), ("F8_E4M3", 1), ("F8_E5M2", 1), ("C64", 8)])
def test_tensors_of_types_that_numpy_has_not_are_refused(path: Path, dtype: str, width: int) -> None:
    entry = {"dtype": dtype, "shape": [2], "data_offsets": [0, 2 * width]}
    header = json.dumps({"__metadata__": {"vpps": "{}"}, "weight/W": entry}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(2 * width))
    assert "damaged" in TestReading.refused(path)


@pytest.mark.host
def test_a_description_that_is_too_deep_is_refused(path: Path) -> None:
    save_file({}, path, {"vpps": "[" * 100_000})
    assert "damaged" in TestReading.refused(path)


@pytest.mark.host
class TestOtherModels:
    def test_strict_names_what_is_missing_where(self, path: Path) -> None:
        small().save(path)
        model = small()
        model.parameter("extra", (2,))
        with pytest.raises(vpps.CheckpointError) as caught:
            model.restore(path)
        assert all(words in str(caught.value) for words in ("'extra'", "strict=False"))
        with pytest.raises(vpps.CheckpointError, match="'words'"):
            vpps.Model().restore(path)

    def test_not_strict_takes_what_both_have(self, path: Path) -> None:
        saved = small()
        for p in saved:
            p.assign(p.numpy() + 1)
        saved.save(path)
        model = vpps.Model(seed=1)
        table = model.lookup("words", (5, 4))
        own = model.parameter("own", (2,), init="ones")
        model.restore(path, strict=False)
        assert np.array_equal(table.numpy(), saved["words"].numpy())
        assert (own.numpy() == 1).all()

    @pytest.mark.parametrize("strict", [True, False])
    def test_another_shape_is_refused_either_way(self, path: Path, strict: bool) -> None:
        small().save(path)
        model = vpps.Model()
        for p in small():
            kind = model.lookup if isinstance(p, vpps.Lookup) else model.parameter
            kind(p.name, (7, 4) if p.name == "words" else p.shape)
        before = model.numpy()
        with pytest.raises(vpps.CheckpointError) as caught:
            model.restore(path, strict=strict)
        assert all(words in str(caught.value) for words in ("'words'", "(5, 4)", "(7, 4)"))
        assert same_bits(model.numpy(), before)


def test_averages_of_a_table_are_no_averages_of_a_parameter(tmp_path: Path) -> None:
    """A table has averages per row. Without them, a table's weights can become a parameter's, to be tied."""

    def model(kind: str) -> vpps.Model:
        made = vpps.Model(seed=1)
        getattr(made, kind)("E", (4, 3))
        return made

    source = model("lookup")
    with vpps.Handle(source, vpps.SGD(lr=0.1), ema=0.9) as handle:
        graph = vpps.Graph()
        handle.fb(graph, vpps.sum(graph.lookup(source["E"], 1)))
    source.save(tmp_path / "averaged")
    with pytest.raises(vpps.CheckpointError, match="'E' is a lookup in the file and a parameter in the model"):
        model("parameter").restore(tmp_path / "averaged")
    with source.averaged():
        source.save(tmp_path / "weights")
        tied = model("parameter")
        tied.restore(tmp_path / "weights")
        assert np.array_equal(tied["E"].numpy(), source["E"].numpy())
