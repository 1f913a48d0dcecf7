"""JAX beside vpps: its arrays come in, ours go out without a copy, gradients are handed through `jax.custom_vjp`."""

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
    """Two rows become one, a child at a time: h = tanh(W [h, x] + words[i])."""

    def __init__(self) -> None:
        self.model = vpps.Model(seed=3)
        self.words = self.model.lookup("words", (N_WORDS, D))
        self.w = self.model.parameter("W", (D, 2 * D))

        @vpps.cell
        def inner(h: vpps.Expression, x: vpps.Expression, word: int) -> vpps.Expression:
            return vpps.tanh(self.w @ vpps.concat([h, x]) + vpps.lookup(self.words, word))

        self.inner = inner

    def __call__(self, rows: Any, words: Any) -> vpps.Expression:
        h = rows[0]
        for i, word in enumerate(words):
            h = self.inner(h, rows[i + 1], word)
        return h

    def loss(self, graph: vpps.Graph, x: Any, words: Any, grad: bool = False) -> tuple[vpps.Expression, vpps.Rows]:
        rows = graph.rows(x, grad=grad)
        return vpps.dot(h := self(rows, words), h), rows


def in_jax(weights: dict[str, Any], x: Any, words: Any) -> Any:
    """The same layer."""
    h = x[0]
    for i, word in enumerate(words):
        h = jnp.tanh(weights["W"] @ jnp.concatenate([h, x[i + 1]]) + weights["words"][word])
    return h


def as_layer(layer: Layer, handle: vpps.Handle) -> Any:
    """A function of JAX that computes it in vpps, with weights that JAX has."""

    assigned: dict[str, Any] = {}

    def run(weights: dict[str, Any], x: Any, words: Any, keep: bool) -> tuple[Any, vpps.Rows]:
        for name, w in weights.items():
            if assigned.get(name) is not w:  # arrays of JAX do not change
                layer.model[name].assign(w)
                assigned[name] = w
        graph = vpps.Graph()
        rows = graph.rows(x, grad=True)
        (h,) = handle.forward(graph, [layer(rows, words)], keep=keep)
        return jax.dlpack.from_dlpack(h), rows

    @jax.custom_vjp
    def apply(weights: dict[str, Any], x: Any, words: Any) -> Any:
        return run(weights, x, words, keep=False)[0]

    def forward(weights: dict[str, Any], x: Any, words: Any) -> tuple[Any, Any]:
        h, rows = run(weights, x, words, keep=True)
        kept = handle.kept

        def gradients(seed: Any) -> tuple[Any, ...]:
            found = handle.backward([seed], kept)
            dense = {name: jnp.zeros_like(w) for name, w in weights.items()}
            for name, g in found.items():
                dense[name] = dense[name].at[g.rows].set(g.values) if isinstance(g, tuple) else jnp.asarray(g)
            return dense, jax.dlpack.from_dlpack(handle.input_gradient(rows)), None

        return h, jax.tree_util.Partial(gradients)  # a residual without arrays

    apply.defvjp(forward, lambda gradients, seed: gradients(seed))
    return apply


@pytest.fixture
def wide() -> Any:
    """JAX makes arrays of 64 bits."""
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
        """Whatever the handle runs afterwards, what JAX has been given stays; nothing is read-only or in the pool."""
        layer = Layer()
        x = jax.random.normal(jax.random.key(1), (4, D))
        with vpps.Handle(layer.model, vpps.Adam(lr=0.1), ema=0.9) as handle:

            def results(words: list[int]) -> list[Any]:
                graph = vpps.Graph()
                loss, rows = layer.loss(graph, x, words, grad=True)
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

            with jax.enable_x64(True):  # numbers of rows are int64
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


class TestGradients:
    def test_pass_through_a_custom_vjp(self) -> None:
        """A network whose first and last layers are JAX's: loss and all gradients are those of JAX alone."""
        layer = Layer()
        weights = {name: jnp.asarray(w) for name, w in layer.model.numpy().items()}
        keys = jax.random.split(jax.random.key(2), 3)
        parameters = {
            "encoder": jax.random.normal(keys[0], (D, D)),
            "layer": weights,
            "head": jax.random.normal(keys[1], (3, D)),
        }
        xs = jax.random.normal(keys[2], (2, 4, D))

        with vpps.Handle(layer.model) as handle:
            of_vpps = as_layer(layer, handle)

            def loss(parameters: dict[str, Any], xs: Any, layer: Any) -> Any:
                """The layer twice, so that two forwards wait for their backward; words repeat."""
                total = 0.0
                for x, words in zip(xs, ([1, 8, 1], [0, 1]), strict=True):
                    h = layer(parameters["layer"], jnp.tanh(x @ parameters["encoder"]), jnp.array(words))
                    total = total - jax.nn.log_softmax(parameters["head"] @ h)[1]
                return total

            gradient = jax.value_and_grad(loss, argnums=(0, 1))
            found = gradient(parameters, xs, of_vpps)
            expected = gradient(parameters, xs, in_jax)
            assert jax.tree.structure(found) == jax.tree.structure(expected)
            for got, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
            assert loss(parameters, xs, of_vpps) == pytest.approx(float(found[0]), rel=1e-6)  # without gradients
            with pytest.raises(DtypeError, match="JAX traces"):
                jax.jit(of_vpps)(weights, xs[0], jnp.array([1]))
