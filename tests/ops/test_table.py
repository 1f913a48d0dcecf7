"""Every row of the op table is complete, and its reference gradients match its reference values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from vpps.ops import OPS, Form, Op, size
from vpps.script.instructions import BY_NAME

pytestmark = pytest.mark.host

SOURCES = {Form.INPUT, Form.ZEROS, Form.PARAMETER, Form.ARGUMENT, Form.INDEX}
COMPUTED = [op for op in OPS.values() if op.form not in SOURCES]
N = 3  # vertices of a batch


def sample(op: Op, rng: np.random.Generator) -> tuple[dict[str, Any], list[NDArray[Any]]]:
    """Return attributes and operands for a batch of N vertices."""
    attrs = {k: v for k, v in op.samples.items() if k in op.attrs}

    def draw(*shape: int) -> NDArray[Any]:
        low, high = op.samples.get("low", -2.0), op.samples.get("high", 2.0)
        return rng.uniform(low, high, shape)

    match op.form:
        case Form.MATVEC:
            return attrs, [draw(4, 5), draw(N, 5), draw(N, 4)]
        case Form.CONCAT:
            return attrs, [draw(N, 2), draw(N), draw(N, 3)]
        case Form.SLICE:
            return {"start": 1, "stop": 3, "scalar": False}, [draw(N, 5)]
        case Form.PACKED_MATMUL:
            return attrs, [draw(4, 5), draw(N, 4 if op.name == "affine_transposed" else 5, 3)]
        case Form.MATMUL if op.name == "outer":
            return attrs, [draw(N, 2), draw(N, 3)]
        case Form.MATMUL:
            return attrs, [draw(N, 2, 4), draw(N, 4, 3)]
        case Form.TRANSPOSE:
            return attrs, [draw(N, 2, 3)]
        case Form.RESHAPE:
            return {"shape": (3, 2)}, [draw(N, 6)]
        case Form.DROPOUT:
            return {"rate": 0.5, "number": 0}, [draw(N, 5), rng.integers(0, 2, (N, 5)) * 2]
        case Form.LIST_REDUCE | Form.LIST_MAP:
            return attrs, [draw(5, 4), np.array([0, 2, 2, 5])]
        case Form.LOOKUP:
            return attrs, [draw(6, 4), rng.integers(0, 6, N)]
    operands: list[NDArray[Any]] = [draw(N, 5) for _ in range(op.arity or 0)]
    if op.name == "kl_div":
        operands[1] = rng.uniform(0.1, 0.4, (N, 5))
    return attrs, operands + [rng.integers(0, 5, N) for _ in range(op.indices)]


@pytest.mark.parametrize("op", COMPUTED, ids=lambda op: op.name)
def test_reference_gradient_is_the_derivative(op: Op) -> None:
    rng = np.random.default_rng(1)
    attrs, operands = sample(op, rng)
    y = op.forward(attrs, *operands)
    dy = rng.normal(size=y.shape)
    gradients = op.backward(attrs, operands, y, dy)
    step = 1e-6
    checked = 0
    for k, gradient in enumerate(gradients):
        if gradient is None and not op.differentiable:
            return
        if gradient is None:
            assert operands[k].dtype.kind == "i", f"operand {k} of {op.name} has no gradient but is no index"
            continue
        assert gradient.shape == operands[k].shape
        numeric = np.zeros_like(operands[k])
        for index in np.ndindex(*operands[k].shape):
            shifted = [x.copy() for x in operands]
            shifted[k][index] += step
            above = op.forward(attrs, *shifted).copy()
            shifted[k][index] -= 2 * step
            numeric[index] = np.sum((above - op.forward(attrs, *shifted)) * dy) / (2 * step)
        np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-7)
        checked += 1
    assert checked


@pytest.mark.parametrize("op", COMPUTED, ids=lambda op: op.name)
def test_row_is_complete(op: Op) -> None:
    rng = np.random.default_rng(1)
    attrs, operands = sample(op, rng)
    assert op.doc
    floats = [x for x in operands if x.dtype.kind == "f"]
    of_parameter = op.form in (Form.MATVEC, Form.PACKED_MATMUL, Form.LOOKUP)
    shapes = [x.shape if of_parameter and x is operands[0] else x.shape[1:] for x in floats]
    shape = op.shape(shapes, attrs)
    result = op.forward(attrs, *operands)
    assert result.shape[1:] == shape
    if op.form in (Form.MAP, Form.ROWWISE, Form.LIST_MAP) or op.device:
        assert op.device
        assert op.name in BY_NAME
        gradients = [k for k in range(op.arity or 0) if k not in op.passes and op.differentiable]
        assert all(f"{op.name}.grad{k}" in BY_NAME for k in gradients)
        assert size(shape) >= 1


def test_cosine_of_zeros_has_a_gradient_without_a_warning() -> None:
    a, b = np.zeros((1, 3)), np.ones((1, 3))
    with np.errstate(all="raise"):
        da, db = OPS["cosine"].backward({}, [a, b], np.zeros(1), np.ones(1))
    assert da.tolist() == (b / 1e-8).tolist()
    assert not db.any()
