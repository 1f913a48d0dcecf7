"""JAX beside vpps: its arrays come in, ours go out without a copy. Gradients by custom_vjp: docs/guides/with-jax.md."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vpps
from vpps.errors import DtypeError

jax = pytest.importorskip("jax", reason="jax is not installed: scripts/test --torch installs and tests it")
jnp = jax.numpy

pytestmark = [pytest.mark.cpu, pytest.mark.frameworks("jax")]

D, N_WORDS = 5, 9
DTYPES = "float32 float16 bfloat16 float8_e4m3fn float64 int4 int8 uint8 int32 int64 uint32"


class Layer:
    """Joins two rows, one child at a time: h = tanh(W [h, x] + words[i])."""

    def __init__(self) -> None:
        self.model = vpps.Model(seed=3)
        self.words = self.model.lookup("words", (N_WORDS, D))
        self.w = self.model.parameter("W", (D, 2 * D))

        @vpps.cell
        def inner(h: vpps.Expression, x: vpps.Expression, word: int) -> vpps.Expression:
            return vpps.tanh(self.w @ vpps.concat([h, x]) + vpps.lookup(self.words, word))

        self.inner = inner

    def loss(self, graph: vpps.Graph, x: Any, words: Any) -> tuple[vpps.Expression, vpps.Rows]:
        rows = graph.rows(x, grad=True)
        h = rows[0]
        for row, word in zip(rows[1:], words, strict=True):
            h = self.inner(h, row, word)
        return vpps.dot(h, h), rows


@pytest.fixture
def wide() -> Any:
    """Let JAX make 64-bit arrays."""
    with jax.enable_x64(True):
        yield


@pytest.mark.usefixtures("wide")
class TestIn:
    @pytest.mark.parametrize("dtype", DTYPES.split())
    def test_numbers_of_every_type_are_float32s(self, dtype: str) -> None:
        given = jnp.array([[1, 2.5, -3], [0.1, 7, 4]]).astype(dtype)
        expected = np.asarray(given.astype("float32"))
        model = vpps.Model()
        graph = vpps.Graph()
        with vpps.Handle(model, train=False) as handle:
            found = handle.forward(graph, [graph.input(given), graph.rows(given), graph.input(given[1, 1])])
        for value, numbers in zip(found, (expected, expected, expected[1, 1]), strict=True):
            assert np.array_equal(value, numbers)
        p = model.parameter("p", (2, 3), init=given)
        p.assign(given)
        assert np.array_equal(p.numpy(), expected)

    def test_what_has_no_numbers_is_refused(self) -> None:
        deleted = jnp.ones(3)
        deleted.delete()
        refused = [
            (jax.random.key(0), "key_data"), (deleted, "cannot be read"), (jnp.array([True]), "got dtype bool"),
            (jnp.array([1j]), "got dtype complex"), (jnp.array([2**24 + 1], "int32"), "do not fit"),
            (jnp.array([1e300]), "beyond float32's range"),
        ]  # fmt: skip
        for given, message in refused:
            with pytest.raises(DtypeError, match=message):
                vpps.Graph().input(given)

    def test_inputs_are_copies(self) -> None:
        given = jnp.arange(3.0)
        graph = vpps.Graph()
        x = graph.input(given)
        given.delete()
        with vpps.Handle(vpps.Model(), train=False) as handle:
            assert handle.forward(graph, [x])[0].tolist() == [0, 1, 2]

    def test_words_and_structure_may_be_arrays(self) -> None:
        layer = Layer()

        @vpps.cell
        def leaf(word: int) -> vpps.Expression:
            return vpps.lookup(layer.words, word)

        @vpps.cell
        def pair(left: vpps.Expression, right: vpps.Expression, word: int) -> vpps.Expression:
            return layer.inner(left, right, word)

        def values(graph: vpps.Graph, array: Any, integer: Any) -> list[Any]:
            rows = graph.lookup(layer.words, array([3, 1]))
            one = layer.inner(rows[0], rows[1], integer(4))
            loss = vpps.cross_entropy(layer.w @ vpps.concat([one, graph.lookup(layer.words, integer(2))]), integer(1))
            of_rows = vpps.pick(rows, array([0, 2]))
            mapped = graph.map(
                [leaf, pair], array([0, 0, 1]), array([[-1, -1], [-1, -1], [0, 1]]), {"word": array([5, 1, 2])}
            )
            return [rows, one, loss, of_rows, mapped]

        def computed(*how: Any) -> list[Any]:
            with vpps.Handle(layer.model, train=False) as handle:
                graph = vpps.Graph()
                return handle.forward(graph, values(graph, *how))

        for expected, got in zip(computed(np.array, int), computed(jnp.array, jnp.int32), strict=True):
            assert expected.tobytes() == got.tobytes()

    @pytest.mark.parametrize("transform", ["jit", "grad", "vmap"])
    def test_traced_arrays_have_no_numbers(self, transform: str) -> None:
        layer = Layer()
        for use in (vpps.Graph().input, vpps.Graph().rows, layer.w.assign):
            with pytest.raises(DtypeError, match=r"JAX traces.*no numbers yet; call vpps outside.*custom_vjp"):
                getattr(jax, transform)(use)(jnp.ones((2, 3)))


class TestOut:
    def test_results_are_copies_that_other_libraries_share(self) -> None:
        """JAX's arrays survive all later calls of the handle; they are neither read-only nor in the pool."""
        layer = Layer()
        x = jax.random.normal(jax.random.key(1), (4, D))
        with vpps.Handle(layer.model, vpps.Adam(lr=0.1), ema=0.9) as handle:

            def results(words: list[int]) -> list[Any]:
                graph = vpps.Graph()
                loss, rows = layer.loss(graph, x, words)
                _, dense = handle.gradients(graph, loss)
                found = [*dense.values(), handle.input_gradient(rows), handle.value(loss)]
                _, sparse = handle.gradients(graph, loss, sparse=True)
                found += [sparse["words"].rows, sparse["words"].values]
                found += handle.forward(graph, [loss, rows, rows[1]])
                found += handle.forward(graph, [loss, rows], keep=True)
                found += [handle.value(rows), *handle.backward([1, None])["words"]]
                handle.fb(graph, loss)
                handle.sync_get_latest_loss()
                found += [handle.value(loss), handle.input_gradient(rows), handle.input_gradient(rows[2])]
                return [*found, *layer.model.numpy().values(), layer.w.average()]

            with jax.enable_x64(True):  # row numbers are int64
                found = results([1, 2, 3])
                shared = [jax.dlpack.from_dlpack(a) for a in found]
                converted = [jnp.asarray(a) for a in found]
                before = [a.copy() for a in found]
                pool = handle._engine.machine.pool
                assert not any(np.shares_memory(a, pool) for a in found)
                assert not any(np.shares_memory(a, p.host) for a in found for p in layer.model)
                for step in range(3):
                    results([4, 5, step])
                for a, one, other in zip(before, shared, converted, strict=True):
                    assert a.tobytes() == np.asarray(one).tobytes() == np.asarray(other).tobytes()
                    assert a.shape == one.shape
                    assert a.dtype == one.dtype

    def test_gradients_come_back_for_an_update(self) -> None:
        layer = Layer()
        before = layer.model.numpy()
        with vpps.Handle(layer.model, vpps.SGD(lr=1.0)) as handle:
            rows = jnp.array([3]), jnp.ones((1, D), jnp.bfloat16)
            handle.apply({"W": jnp.ones(layer.w.shape), "words": rows})
        before["W"] -= 1
        before["words"][3] -= 1
        for name, w in layer.model.numpy().items():
            assert np.array_equal(w, before[name])
