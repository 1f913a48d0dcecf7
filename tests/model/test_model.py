"""Model: initial weights, names, access, and transfer of weights to handles and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vpps
from tests.classifier import new, same_bits
from vpps.init import INITIALISERS

WIDE = (300, 500)


def initial(init: Any, shape: tuple[int, ...] = WIDE, seed: int = 1) -> np.ndarray[Any, np.dtype[np.float32]]:
    model = vpps.Model(seed=seed)
    return model.parameter("p", shape, init=init).numpy()


@pytest.mark.host
class TestInitialWeights:
    @pytest.mark.parametrize("name", INITIALISERS)
    def test_every_initialiser_gives_finite_float32_of_the_shape(self, name: str) -> None:
        for shape in (WIDE, (3, 4), *([(), (7,)] if name != "orthogonal" else [])):
            w = initial(name, shape)
            assert (w.shape, w.dtype) == (shape, np.float32)
            assert np.isfinite(w).all()

    @pytest.mark.parametrize("name, fan", [("glorot", sum(WIDE) / 2), ("he", WIDE[1])])
    @pytest.mark.parametrize("law", ["uniform", "normal"])
    def test_variance_follows_the_fans(self, name: str, fan: float, law: str) -> None:
        w = initial(f"{name}_{law}")
        variance = (1 if name == "glorot" else 2) / fan
        assert w.mean() == pytest.approx(0, abs=5 * (variance / w.size) ** 0.5)
        assert w.var() == pytest.approx(variance, rel=0.02)
        if law == "uniform":
            assert abs(w).max() <= (3 * variance) ** 0.5 * (1 + 1e-6)

    @pytest.mark.parametrize("shape", [(20, 50), (50, 20), (30, 30)])
    def test_orthogonal_has_orthonormal_rows_or_columns(self, shape: tuple[int, int]) -> None:
        w = initial("orthogonal", shape)
        short = w if shape[0] <= shape[1] else w.T
        np.testing.assert_allclose(short @ short.T, np.eye(min(shape)), atol=1e-5)

    def test_defaults_are_glorot_for_matrices_zeros_for_vectors_and_uniform_for_tables(self) -> None:
        model = vpps.Model(seed=1)
        assert model.parameter("W", WIDE).numpy().var() == pytest.approx(2 / sum(WIDE), rel=0.02)
        assert not model.parameter("b", (9,)).numpy().any()
        table = model.lookup("E", WIDE).numpy()
        assert 0.099 < abs(table).max() <= 0.1

    @pytest.mark.parametrize(
        "given, value", [("zeros", 0), ("ones", 1), *((n, n) for n in (2, 0.5, np.float32(0.5), np.int64(3)))]
    )
    def test_a_number_fills(self, given: Any, value: float) -> None:
        assert (initial(given, (3, 4)) == value).all()

    @pytest.mark.parametrize("factory", ["uniform", "normal", "constant"])
    def test_factories_take_their_scale(self, factory: str) -> None:
        w = initial(getattr(vpps.init, factory)(0.5))
        expected = {"uniform": 0.5 / 3**0.5, "normal": 0.5, "constant": 0.5}[factory]
        assert np.sqrt(np.mean(w.astype(float) ** 2)) == pytest.approx(expected, rel=0.02)

    def test_a_function_gets_a_generator_and_the_shape(self) -> None:
        w = initial(lambda rng, shape: rng.integers(5, 6, shape), (2, 3))
        assert (w == 5).all()

    def test_weights_follow_from_the_seed_and_the_name_not_from_the_order_of_declaration(self) -> None:
        def declare(names: str, seed: int = 3) -> vpps.Model:
            model = vpps.Model(seed=seed)
            for name in names:
                model.parameter(name, (4, 5))
            return model

        forward, backward, other = declare("abc"), declare("cba"), declare("abc", seed=4)
        assert same_bits(forward.numpy(), declare("abc").numpy())
        for name in "abc":
            assert np.array_equal(forward[name].numpy(), backward[name].numpy())
            assert not np.array_equal(forward[name].numpy(), other[name].numpy())
        assert not np.array_equal(forward["a"].numpy(), forward["b"].numpy())

    @pytest.mark.parametrize("seed", [0, -5, 2**70, np.int64(4)])
    def test_any_int_is_a_seed(self, seed: int) -> None:
        assert np.array_equal(initial("normal", seed=seed), initial("normal", seed=seed))
        assert not any(np.array_equal(initial("normal", seed=seed), initial("normal", seed=k)) for k in (1, 5))


@pytest.mark.host
class TestNames:
    def test_scopes_nest_and_prefix(self) -> None:
        model = vpps.Model()
        with model.scope("encoder"):
            with model.scope("layer0"):
                inner = model.parameter("W", (2, 2))
            outer = model.lookup("W", (2, 2))
        assert (inner.name, outer.name) == ("encoder/layer0/W", "encoder/W")
        assert model.parameter("W", (2, 2)).name == "W"
        assert [p.name for p in model] == ["encoder/layer0/W", "encoder/W", "W"]

    def test_a_scope_ends_with_an_exception_too(self) -> None:
        model = vpps.Model()
        with pytest.raises(RuntimeError), model.scope("encoder"):
            raise RuntimeError
        assert model.parameter("W", (2, 2)).name == "W"

    def test_a_model_is_a_collection_of_its_parameters(self) -> None:
        model = vpps.Model()
        W, E = model.parameter("W", [2, np.int32(3)]), model.lookup("E", (4, 5))  # type: ignore[arg-type]
        assert model["W"] is W
        assert list(model) == [W, E]
        assert len(model) == 2
        assert model.n_weights == 2 * 3 + 4 * 5
        assert "E" in model
        assert "F" not in model
        assert isinstance(E, vpps.Lookup)
        assert not isinstance(W, vpps.Lookup)

    def test_printed_it_is_a_table_of_them(self) -> None:
        model = vpps.Model()
        with model.scope("encoder"):
            model.parameter("W", (200, 300))
        model.lookup("words", (4, 5), trainable=False)
        model.parameter("scale", ())
        assert str(model) == (
            "parameter  shape       weights  trainable  where\n"
            "────────────────────────────────────────────────\n"
            "encoder/W  (200, 300)   60,000  yes        -\n"
            "words      (4, 5)           20  no         -\n"
            "scale      ()                1  yes        -\n"
            "3 parameters, 60,021 weights (60,001 trainable), 234 KiB; 0 steps trained"
        )


@pytest.mark.cpu
def test_weights_stay_where_they_are(tmp_path: Path) -> None:
    """Every way to write weights keeps their memory, which other objects may share."""
    net = new()
    host = {p.name: p.host for p in net.model}
    net.model.save(tmp_path / "before.safetensors")
    with vpps.Handle(net.model, vpps.Adam(), ema=0.9) as handle:
        handle.fb(*net.batch(1))
        trained = net.model.numpy()
        with net.model.averaged():
            pass
    net.model["b"].assign(trained["b"] + 1)
    for p in net.model:
        assert p.host is host[p.name]
        np.testing.assert_array_equal(host[p.name], trained[p.name] + (p.name == "b"))
    net.model.restore(tmp_path / "before.safetensors")
    assert all(p.host is host[p.name] for p in net.model)


@pytest.mark.host
class TestAssignment:
    def test_arrays_are_copies(self) -> None:
        model, given = vpps.Model(), np.ones(3, np.float32)
        parameter = model.parameter("p", (3,), init=given)
        given[:] = 7
        parameter.numpy()[:] = 7
        model.numpy()["p"][:] = 7
        assert (parameter.numpy() == 1).all()
        parameter.assign(given)
        given[:] = 1
        assert (parameter.numpy() == 7).all()

    @pytest.mark.parametrize(
        "value",
        [
            [1, 2, 3], (1.5, 2.5, 3.5), np.array([1, 2, 3], np.int8), np.array([1, 2, 2**24], np.uint64),
            np.array([1, 2, 3], np.float16), np.array([0.1, 0.2, 0.3]), np.array([0.1, 0.2, 0.3], np.longdouble),
            np.arange(6, dtype=np.float32)[::2], np.array([1, 2, 3], ">f4"), np.array([1e-40, -1e-45, 1]),
        ],
        ids=["list", "tuple", "int8", "uint64", "float16", "float64", "longdouble", "strided", ">f4", "denormals"],
    )  # fmt: skip
    def test_numbers_that_float32_can_stand_for_are_taken(self, value: Any) -> None:
        model = vpps.Model()
        parameter = model.parameter("p", (3,))
        parameter.assign(value)
        assert parameter.numpy().dtype == np.dtype("=f4")
        assert np.array_equal(parameter.numpy(), np.asarray(value).astype(np.float32))


@pytest.mark.cpu
@pytest.mark.parametrize("target, expected", [("cpu", "cpu memory"), ("simt", "shared")])
def test_printed_it_says_where_the_latest_handle_has_the_weights(target: str, expected: str) -> None:
    model = vpps.Model()
    U, V, b = (model.parameter(name, shape) for name, shape in (("U", (64, 64)), ("V", (64, 64)), ("b", (64,))))
    twice = vpps.cell(lambda x: U @ x * (V @ x + b))  # U and V are one product, and one stack
    graph = vpps.Graph()
    loss = twice(graph.input(np.ones(64)))[0]
    with vpps.Handle(model, target=target, vps=2) as handle:
        handle.disassemble(graph, loss)
    model.parameter("late", (3,))
    rows = [line.split("  ") for line in str(model).splitlines()[2:-1]]
    places = {row[0].strip(): row[-1].strip() for row in rows}
    memory = "GPU memory" if target == "simt" else expected
    assert places == {"U": expected, "V": expected, "b": memory, "late": "-"}


def test_a_model_is_not_copied_by_accident_nor_is_a_parameter() -> None:
    """A model's copy would keep the original's parameters, and a parameter's copy has no model; save and load copy
    properly."""
    import copy
    import pickle

    model = vpps.Model(seed=1)
    W = model.parameter("W", (2, 3))
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        for x in (model, W):
            with pytest.raises(vpps.ModelError, match=r"model\.save and Model\.load"):
                duplicate(x)
